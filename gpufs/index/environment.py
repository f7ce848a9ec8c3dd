"""Opens the LMDB environment of an index, and replaces one that cannot be used."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lmdb

from gpufs.index.damage import find_damage
from gpufs.index.tables import Tables

_log = logging.getLogger("gpufs.index")

DATA_FILE = "data.mdb"
_LOCK_FILE = "lock.mdb"
_GIB = 1 << 30
# Address space, not memory. The smaller ones are for processes with a limited address space.
_MAP_SIZES = (64 * _GIB, 16 * _GIB, 4 * _GIB, _GIB)
_MAX_READERS = 1024
DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PanicError,
)


class Users:
    """Who uses an index directory: a lock for the time of opening, another held as long as it is open.

    LMDB's own lock file must not be touched while LMDB has it open (closing any descriptor of it
    gives up LMDB's locks), hence files of our own.
    """

    def __init__(self, directory: Path) -> None:
        self._opening = _lock_file(directory / "opening.lock")
        self._using = _lock_file(directory / "users.lock")

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Nobody else opens the directory meanwhile; the value tells whether nobody else has it open.

        When it ends, this process counts as a user until close().
        """
        fcntl.flock(self._opening, fcntl.LOCK_EX)
        try:
            alone = True
            try:
                fcntl.flock(self._using, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alone = False
            try:
                yield alone
            finally:
                fcntl.flock(self._using, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._opening, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._using)
        os.close(self._opening)


def open_environment(directory: Path, *, check: bool) -> lmdb.Environment:
    """The environment in `directory`, empty when there was none or it was damaged.

    `check` walks the file first and must be False while somebody else may write it.
    """
    data = directory / DATA_FILE
    if check and data.exists() and data.stat().st_size > 0:
        problem = find_damage(data)
        if problem is not None:
            discard(directory, f"is damaged ({problem})")
    try:
        return _open(directory)
    except DAMAGE as error:
        discard(directory, f"is damaged ({error})")
        return _open(directory)


def discard(directory: Path, why: str) -> None:
    """Remove the files, so that the next open starts empty; whoever has them open keeps them."""
    _log.warning("the metadata index in %s %s: starting afresh", directory, why)
    for name in (DATA_FILE, _LOCK_FILE):
        with suppress(FileNotFoundError):
            (directory / name).unlink()


def _open(directory: Path) -> lmdb.Environment:
    for map_size in _MAP_SIZES:
        try:
            env = lmdb.Environment(
                os.fspath(directory),
                map_size=map_size,
                mode=0o700,
                sync=False,
                max_readers=_MAX_READERS,
                max_dbs=Tables.COUNT,
                max_spare_txns=1,
            )
        except lmdb.Error as error:
            if map_size == _MAP_SIZES[-1] or not _out_of_address_space(error):
                raise
        else:
            env.reader_check()
            return env
    raise AssertionError("the last map size returns or raises")


def _out_of_address_space(error: lmdb.Error) -> bool:
    return isinstance(error, lmdb.MemoryError) or error.code == errno.ENOMEM


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
