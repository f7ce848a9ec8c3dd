"""What there is one of on a machine and tests change: it is one test's at a time, in whatever process."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held(path: str, *, unchanged: bool = False) -> Iterator[None]:
    """`path` is nobody else's meanwhile; if it is to stay `unchanged`, theirs too who want no more."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if unchanged else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def device_for_all() -> Iterator[None]:
    """Anybody may open /dev/fuse, as on most machines."""
    with held("/dev/fuse"):
        mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
        os.chmod("/dev/fuse", 0o666)
        try:
            yield
        finally:
            os.chmod("/dev/fuse", mode)
