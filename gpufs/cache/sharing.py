"""How processes share a cache directory: who is the first and the last user, and what must not overlap.

Two lock files, both flock(2), so a killed process leaves neither behind:
- `lock` is held shared by every user for as long as it lives. Whoever gets it exclusively is alone.
- `gate` is held for short whole operations that must not overlap between processes: opening (with the
  recovery), closing, eviction, creating and completing partial objects. `lock` is only ever taken or
  converted inside the gate, so that flock's conversion, which is not atomic, cannot be interleaved.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Sharing:
    """The two locks of a cache directory, as one process holds them."""

    def __init__(self, root: Path) -> None:
        self._lock = os.open(root / "lock", _OPEN, 0o600)
        try:
            self._gate = os.open(root / "gate", _OPEN, 0o600)
        except OSError:
            os.close(self._lock)
            raise
        # flock does not tell the threads of one process apart.
        self._thread_gate = threading.Lock()

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        """Keep every other thread and process out of the operations named above."""
        with self._thread_gate:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def alone(self) -> bool:
        """Inside the gate: whether nobody else uses the directory. May give up the shared lock."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def join(self) -> None:
        """Inside the gate: be a user from now on."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Be a user no longer. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def close(self) -> None:
        """Leave, and give the gate up for good: outside of it."""
        self.leave()
        os.close(self._gate)


@dataclass(frozen=True, slots=True)
class State:
    """What the last user left: under which boot, whether all data had reached the disk (`clean`), and
    whether the catalogue had been told of all of it (`catalogued`)."""

    boot_id: str
    clean: bool
    catalogued: bool


def read_state(root: Path) -> State | None:
    """None when there is none, or none that can be read."""
    try:
        document = json.loads((root / "state").read_bytes())
        return State(str(document["boot_id"]), document["clean"] is True, document["catalogued"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(root: Path, state: State) -> None:
    """Replace the state durably. If that fails, leave none: an absent state is never trusted. OSError."""
    path, new = root / "state", root / "state.new"
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(asdict(state)).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
        sync_directory(root)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(directory: Path) -> None:
    """syncfs(2): every write to this file system is on the disk when it returns. OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def current_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
