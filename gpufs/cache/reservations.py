"""Room that processes have taken and the catalogue does not know of yet, told to one another in a file.

Each process has a slot of two numbers in `reserved`, and a lock on it for as long as it lives: what a killed
process left in its slot counts no more. Written with pwrite(2), as a mapping would be a SIGBUS when the
disk is full.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_SLOTS = 256
_SLOT = struct.Struct("<QQ")
# struct flock of <fcntl.h>: type, whence, start, length, pid. Locks of the open file description: those of
# the process would be lost with the first descriptor of the file that it closes.
_FLOCK = struct.Struct("hhqqi4x")


class Reservations:
    """The slot of this process, and what is in the others'. OSError when the file cannot be used."""

    def __init__(self, root: Path) -> None:
        self._fd = os.open(root / "reserved", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._told = 0, 0
        try:
            self._slot = next(slot for slot in range(_SLOTS) if self._lock(slot))
            with suppress(OSError):
                os.pwrite(self._fd, _SLOT.pack(0, 0), self._slot * _SLOT.size)
        except StopIteration:
            os.close(self._fd)
            raise OSError(f"more than {_SLOTS} processes use it") from None
        except BaseException:
            os.close(self._fd)
            raise

    def tell(self, in_flight: int, unflushed: int) -> None:
        """Have the others count these bytes for this process: not yet kept; kept and not yet catalogued."""
        if (in_flight, unflushed) != self._told:
            with suppress(OSError):  # a full disk: what cannot be told must not keep us from making room
                os.pwrite(self._fd, _SLOT.pack(in_flight, unflushed), self._slot * _SLOT.size)
                self._told = in_flight, unflushed

    def of_others(self) -> tuple[int, int]:
        """What all other processes have told, added up."""
        in_flight = unflushed = 0
        data = os.pread(self._fd, _SLOTS * _SLOT.size, 0)
        for slot in range(len(data) // _SLOT.size):
            told = _SLOT.unpack_from(data, slot * _SLOT.size)
            if told != (0, 0) and slot != self._slot and self._is_locked(slot):
                in_flight += told[0]
                unflushed += told[1]
        return in_flight, unflushed

    def close(self) -> None:
        """May be followed by tell(), which does nothing then."""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._flock(slot))
        except BlockingIOError:
            return False
        return True

    def _is_locked(self, slot: int) -> bool:
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, self._flock(slot))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    @staticmethod
    def _flock(slot: int) -> bytes:
        return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot * _SLOT.size, _SLOT.size, 0)
