"""The form of the log, the same in every process of a mount."""

from __future__ import annotations

import logging


def setup_logging(level: str) -> None:
    """Log to stderr, one key=value line per event."""
    logging.basicConfig(
        level=level.upper(),
        format="time=%(asctime)s level=%(levelname)s logger=%(name)s msg=%(message)s",
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells each time where credentials were found
