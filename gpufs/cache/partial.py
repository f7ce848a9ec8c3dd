"""A large object that is filled chunk by chunk, by several threads and processes at once.

Two files: the data, sparse; and the map, 8 bytes per chunk: the chunk's hash, or 0 while it is absent. The
map is written after the data, so whoever sees a hash can read the chunk, and a process killed in between
leaves an absent chunk. The map is read through a shared mapping (no system call), but written with pwrite:
a store into a mapping of a full disk would be a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import threading

from gpufs.cache.checksum import CHUNK, combined_hash, content_hash
from gpufs.cache.keeper import Keeper
from gpufs.cache.layout import Layout, mark_in_use, unlink, write_at

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = _OPEN | os.O_CREAT | os.O_EXCL
_RECOUNT = 16


class Partial:
    """Thread-safe. `fd` is for pread of the chunks that has() confirms; -1 when nothing can be kept.

    Chunk i is bytes [i * CHUNK, min((i + 1) * CHUNK, size)). Once has(i) is true it stays true, and the
    bytes stay readable from `fd`, until close(); whatever happens to the files meanwhile.
    """

    def __init__(self, keeper: Keeper, size: int, files: tuple[int, int] | None) -> None:
        """`files`: what open_files() gave, owned from now on; None to keep nothing. OSError."""
        self.size = size
        self.chunks = -(-size // CHUNK)
        self.fd, self._map = files if files is not None else (-1, -1)
        self._keeper = keeper
        self._lock = threading.Lock()
        self._none = memoryview(bytes(8 * self.chunks)).cast("Q")
        self._hashes = self._none
        self._writers = 0  # threads inside write(): the files stay open for them
        self._closing = False
        self._promoted = files is None or self._map < 0
        if files is not None:
            self._hashes = self._map_hashes()
        # Chunks below this one are all there.
        self._filled = 0
        self._held = self._count()
        if files is not None:
            keeper.opened(self._held)
        self._writes = 0
        # A process may have been killed after the last chunk.
        self._promote_if_complete()

    def _map_hashes(self) -> memoryview:
        if self._map < 0:
            return memoryview(bytes([255]) * (8 * self.chunks)).cast("Q")
        try:
            mapping = mmap.mmap(self._map, 8 * self.chunks, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(self.fd)
            os.close(self._map)
            raise
        return memoryview(mapping).cast("Q")

    def has(self, chunk: int) -> bool:
        """Whether the chunk can be read from `fd`. Hot path: no system call, no lock."""
        return self._hashes[chunk] != 0

    @property
    def complete(self) -> bool:
        """Whether every chunk is there."""
        filled, hashes = self._filled, self._hashes
        while filled < self.chunks and hashes[filled]:
            filled += 1
        self._filled = filled
        return filled == self.chunks

    def write(self, chunk: int, data: memoryview) -> bool:
        """Keep one whole chunk; False when it was not kept. ValueError when it is not a whole chunk."""
        expected = min(CHUNK, self.size - chunk * CHUNK)
        if chunk < 0 or len(data) != expected:
            raise ValueError(f"chunk {chunk} has {expected} bytes, not {len(data)}")
        with self._lock:
            if self._closing:
                return False
            self._writers += 1
        try:
            return self.has(chunk) or self._write(chunk, data, expected)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._writers -= 1
            last = self._closing and not self._writers
        if last:
            self._close_files()

    def _write(self, chunk: int, data: memoryview, expected: int) -> bool:
        if self.fd < 0 or not self._named() or not self._keeper.reserve(expected):
            return False
        try:
            write_at(self.fd, data, chunk * CHUNK)
            self._enter(chunk, content_hash(data), expected)
        except OSError as error:
            self._keeper.failed(error)
            return False
        finally:
            self._keeper.release(expected)
        self._promote_if_complete()
        return True

    def _named(self) -> bool:
        """False once the file was unlinked: what is written to it then is kept for nobody else, uncounted."""
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def _enter(self, chunk: int, value: int, length: int) -> None:
        with self._lock:
            if not self._hashes[chunk]:
                os.pwrite(self._map, value.to_bytes(8, "little"), 8 * chunk)
                self._held += length
            self._writes += 1
            if self._writes % _RECOUNT == 0:
                # Another process may be filling it too.
                self._held = self._count()
            if not self._promoted and self._named():
                self._keeper.holds(self._held)

    def _promote_if_complete(self) -> None:
        if not self.complete:
            return
        with self._lock:
            if self._promoted:
                return
            self._promoted = True
            checksum = combined_hash(self._hashes.tobytes())
            self._keeper.promote(self.fd, self.size, checksum)

    def _count(self) -> int:
        return held_bytes(self._hashes.tolist(), self.size)

    def close(self) -> None:
        """No more use of `fd`, and no more write(). May be called twice.

        A thread that is writing goes on, and closes the files at its end: their descriptors must not
        become another file's under it. has() is false when they are closed.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self._writers:
                return
        self._close_files()

    def _close_files(self) -> None:
        if self.fd < 0:
            return
        # Unmapped when the last thread inside has() lets go of it.
        self._hashes = self._none
        if self._map >= 0:
            os.close(self._map)
        os.close(self.fd)
        self.fd = self._map = -1


def held_bytes(hashes: list[int], size: int) -> int:
    """Bytes of the chunks that have a hash."""
    held = (len(hashes) - hashes.count(0)) * CHUNK
    if hashes and hashes[-1]:
        held -= len(hashes) * CHUNK - size
    return held


def open_files(layout: Layout, digest: bytes, size: int) -> tuple[int, int]:
    """The data and the map of a partial object, opened or created; no map (-1) when it is whole already.

    Inside the gate. OSError.
    """
    try:
        # Another process may have completed it since the caller looked.
        return layout.open_object(digest), -1
    except FileNotFoundError:
        pass
    path = layout.partial_path(digest)
    length = 8 * -(-size // CHUNK)
    data = _open_data(layout, path, size)
    try:
        return data, _open_map(path + ".map", length)
    except BaseException:
        os.close(data)
        raise


def _open_data(layout: Layout, path: str, size: int) -> int:
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        pass
    else:
        if os.fstat(fd).st_size == size:
            return mark_in_use(fd)
        os.close(fd)
        unlink(path)
    # A map without its data would promise chunks that are not there: it goes first.
    unlink(path + ".map")
    try:
        fd = os.open(path, _CREATE, 0o600)
    except FileNotFoundError:
        os.mkdir(layout.partial, 0o700)
        fd = os.open(path, _CREATE, 0o600)
    try:
        os.truncate(fd, size)
    except BaseException:
        os.close(fd)
        unlink(path)
        raise
    return mark_in_use(fd)


def _open_map(path: str, length: int) -> int:
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        pass
    else:
        if os.fstat(fd).st_size == length:
            return fd
        os.close(fd)
        unlink(path)
    fd = os.open(path, _CREATE, 0o600)
    try:
        # All its blocks now: neither reading nor writing it may fail for want of space later.
        os.posix_fallocate(fd, 0, length)
    except BaseException:
        os.close(fd)
        unlink(path)
        raise
    return fd
