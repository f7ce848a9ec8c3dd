"""Whether the filesystem process still answers, asked through its control socket from time to time."""

from __future__ import annotations

import os

from gpufs.control import client, paths
from gpufs.errors import DeadlineExceeded, GpufsError

EVERY = 10.0  # seconds between two questions
PATIENCE = 5.0  # seconds for an answer
MISSES = 6  # unanswered questions in a row that make a process a hung one: a minute and more
_AT_IT = "RS"  # states (proc(5)) in which it could answer; not stopped, and not waiting for a disk


class Watchdog:
    """Only time in which this process runs counts, so neither a suspended machine nor a slow one matters."""

    def __init__(self, mountpoint: str) -> None:
        self._mount = paths.Mount(mountpoint, paths.FSTYPE, "", os.geteuid())
        self._missed = 0

    def hangs(self, pid: int) -> bool:
        """Ask once; whether process `pid` has been asked in vain often enough."""
        try:
            client.call(self._mount, "ping", timeout=PATIENCE)
        except (DeadlineExceeded, BlockingIOError):  # the latter: nobody takes connections
            self._missed = self._missed + 1 if _state(pid) in _AT_IT else 0
        except (GpufsError, OSError):  # no socket: it was removed, or another mount has the place
            self._missed = 0
        else:
            self._missed = 0
        return self._missed >= MISSES


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
