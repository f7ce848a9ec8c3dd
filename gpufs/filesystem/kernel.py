"""Settings of the kernel's side of a mount, made through /sys where that is allowed."""

from __future__ import annotations

import logging

READ_AHEAD_KIB = 1024  # one READ's most: large sequential reads come in the fewest requests
MAX_BACKGROUND = 256  # read-ahead requests the kernel may have under way at once

log = logging.getLogger("gpufs.kernel")


def tune(device: str) -> None:
    """Raise read-ahead and background requests of the mount with device number `device` ("0:53")."""
    connection = f"/sys/fs/fuse/connections/{device.partition(':')[2]}"
    for settings, meaning in (
        (
            {f"/sys/class/bdi/{device}/read_ahead_kb": READ_AHEAD_KIB},
            "large files are read in smaller pieces",
        ),
        (
            {
                f"{connection}/max_background": MAX_BACKGROUND,
                f"{connection}/congestion_threshold": MAX_BACKGROUND * 3 // 4,
            },
            "without the fast path, fewer reads ahead are under way at once",
        ),
    ):
        try:
            for path, value in settings.items():
                with open(path, "w") as file:
                    file.write(str(value))
        except OSError as error:  # not root, or /sys is read-only or has no fuse control here
            log.info("cannot set %s to %d (%s): %s", path, value, error.strerror, meaning)
