"""The files of a cache directory: where they are, and the plain operations on them."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from gpufs.errors import CacheUnusable

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Layout:
    """Paths and file operations of one cache directory. They raise OSError unless they say otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.compressed = root / "compressed"
        self.unverified = root / "unverified"
        self.partial = root / "partial"
        self.tmp = root / "tmp"
        self.index = root / "index"
        self.catalogue = root / "catalogue"
        self._objects = f"{self.objects}/"
        self._compressed = f"{self.compressed}/"
        # Not the process id: two containers may share the directory and have the same one.
        self._temporary = f"{self.tmp}/{os.urandom(6).hex()}."
        self._numbers = itertools.count()

    def index_directory(self, source_id: str) -> Path:
        """Where the metadata index of a source lives."""
        return self.index / xxh3_128_hexdigest(source_id.encode())

    def prepare(self) -> None:
        """Create the directory if it is missing; CacheUnusable when it cannot be ours alone."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.root.stat()
        except OSError as error:
            raise CacheUnusable(f"cache directory {self.root}: {error.strerror}") from error
        if found.st_uid != os.geteuid():
            raise CacheUnusable(
                f"cache directory {self.root} belongs to user {found.st_uid}, not to {os.geteuid()}: "
                "choose another cache_dir or change its owner"
            )
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise CacheUnusable(f"cache directory {self.root} is writable by others: chmod go-w it")

    def make_subdirectories(self) -> None:
        for directory in (self.objects, self.partial, self.tmp, self.index):
            directory.mkdir(mode=0o700, exist_ok=True)

    # Objects: in one level of 256 directories. With a second level nearly every object of a data set
    # of 100,000 makes a directory of its own, which costs more than writing the object (see decisions).

    def object_path(self, digest: bytes) -> str:
        name = digest.hex()
        return f"{self._objects}{name[:2]}/{name}"

    def compressed_path(self, digest: bytes) -> str:
        name = digest.hex()
        return f"{self._compressed}{name[:2]}/{name}"

    def unverified_path(self, digest: bytes) -> str:
        name = digest.hex()
        return f"{self.unverified}/{name[:2]}/{name}"

    def partial_is_in_use(self, digest: bytes) -> bool:
        """Whether any process has the partial object open. OSError."""
        try:
            fd = os.open(self.partial_path(digest), _READ)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def partial_path(self, digest: bytes) -> str:
        return f"{self.partial}/{digest.hex()}"

    def open_object(self, digest: bytes) -> int:
        return os.open(self.object_path(digest), _READ)

    def read_compressed(self, digest: bytes) -> bytes:
        fd = os.open(self.compressed_path(digest), _READ)
        with open(fd, "rb", buffering=0) as file:
            return file.readall()

    def has_plain(self, digest: bytes) -> bool:
        return os.path.exists(self.object_path(digest))

    def has_compressed(self, digest: bytes) -> bool:
        return os.path.exists(self.compressed_path(digest))

    def has_any(self, digest: bytes) -> bool:
        """Whether there is a file of the object, whole, compressed, partial or unverified."""
        places = self.object_path, self.compressed_path, self.partial_path, self.unverified_path
        return any(os.path.lexists(path_of(digest)) for path_of in places)

    def move_to_objects(self, source: str, digest: bytes) -> None:
        """Publish `source` under its digest, in one atomic step."""
        _move(source, self.object_path(digest))

    def move_to_compressed(self, source: str, digest: bytes) -> None:
        """The same, of what Compression.pack() gave."""
        _move(source, self.compressed_path(digest))

    # Temporary files

    def create_temporary(self) -> tuple[int, str]:
        """A new file in tmp/, open for reading and writing, and its path."""
        path = f"{self._temporary}{next(self._numbers)}"
        try:
            return os.open(path, _CREATE, 0o600), path
        except FileNotFoundError:
            os.mkdir(self.tmp, 0o700)
            return os.open(path, _CREATE, 0o600), path

    def create_unlinked(self) -> int:
        """A file on the cache's disk that has no name and is gone when closed."""
        return os.open(self.tmp, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)

    def clear_temporary(self, older_than: float = 0.0) -> None:
        """Remove temporary files that were last written so many seconds ago. OSError."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.tmp):
                path = f"{self.tmp}/{name}"
                if not older_than or time.time() - os.lstat(path).st_mtime > older_than:
                    unlink(path)


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        leaf = os.path.dirname(target)
        # Not the root: when that vanished, a mount point may be bare, and is not ours to fill.
        for directory in (os.path.dirname(leaf), leaf):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
        os.rename(source, target)


def unlink(path: str) -> bool:
    """Remove a name; False when there is none."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data`."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        more = os.pwrite(fd, data[written:], offset + written)
        written += more


def walk_objects(top: Path) -> Iterator[tuple[bytes, str]]:
    """Digest and path of every file of a tree objects/ab/<digest>; what is not one is left out."""
    for leaf in _names(str(top)):
        for name in _names(f"{top}/{leaf}"):
            with contextlib.suppress(ValueError):
                yield bytes.fromhex(name), f"{top}/{leaf}/{name}"


def move_tree(source: Path, target: Path) -> None:
    """Rename objects/ to unverified/, or merge it into one that is left from an earlier time."""
    try:
        os.rename(source, target)
        return
    except FileNotFoundError:
        return
    except OSError:
        if not target.is_dir():
            raise
    for digest, path in walk_objects(source):
        name = digest.hex()
        leaf = target / name[:2]
        leaf.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.rename(path, leaf / name)
    shutil.rmtree(source)


def remove_tree(top: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(top)


def remove_empty_directories(top: Path) -> bool:
    """Remove a tree of directories that holds no file; False when it does hold some."""
    try:
        for leaf in _names(str(top)):
            os.rmdir(f"{top}/{leaf}")
        os.rmdir(top)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def mark_in_use(fd: int) -> int:
    """Have partial_is_in_use() say so as long as `fd`, or a duplicate of it, is open. OSError."""
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd
