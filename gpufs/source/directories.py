"""A walk of a tree that can only be listed directory by directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gpufs.errors import AccessDenied, GpufsError, NotADirectory, NotFound
from gpufs.source.base import Batch, Kind, Source

_log = logging.getLogger(__name__)


def walk_by_lists(source: Source) -> Iterator[Batch]:
    """Source.walk(), parents first. What cannot be listed below the root is left out, unless the whole source
    is out of reach."""
    pending = [b""]
    while pending:
        directory = pending.pop()
        below: list[bytes] = []
        try:
            for page in source.list(directory):
                prefix = directory + b"/" if directory else b""
                below.extend(prefix + e.name for e in page.entries if e.kind is Kind.DIRECTORY)
                yield [page]
        except GpufsError as error:
            if not directory:
                raise
            if isinstance(error, NotFound | NotADirectory):
                continue  # removed or replaced since its parent was listed
            if not isinstance(error, AccessDenied):
                source.check()
            _log.warning("left out of the walk: %s", error)
        pending.extend(reversed(below))
