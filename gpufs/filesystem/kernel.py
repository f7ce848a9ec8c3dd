"""Settings of the kernel's side of a mount, made through /sys where that is allowed."""

from __future__ import annotations

import logging

READ_AHEAD_KIB = 1024  # one READ's most: large sequential reads come in the fewest requests
MAX_BACKGROUND = 256  # read-ahead requests the kernel may have under way at once

log = logging.getLogger("gpufs.kernel")


def tune(device: str, *, fast_path: bool) -> None:
    """Raise read-ahead and background requests of the mount with device number `device` ("0:53").

    A fast path has agreed with the kernel on the latter, which libfuse cannot.
    """
    connection = f"/sys/fs/fuse/connections/{device.partition(':')[2]}"
    read_ahead = {f"/sys/class/bdi/{device}/read_ahead_kb": READ_AHEAD_KIB}
    background = {
        f"{connection}/max_background": MAX_BACKGROUND,
        f"{connection}/congestion_threshold": MAX_BACKGROUND * 3 // 4,
    }
    _set(read_ahead, "large files are read in smaller pieces")
    if not fast_path:
        _set(background, "fewer reads ahead are under way at once")


def _set(settings: dict[str, int], otherwise: str) -> None:
    try:
        for path, value in settings.items():
            with open(path, "w") as file:
                file.write(str(value))
    except OSError as error:  # not root, or /sys is read-only or has no fuse control here
        log.info("cannot set %s to %d (%s): %s", path, value, error.strerror, otherwise)
