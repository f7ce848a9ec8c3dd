"""Objects kept compressed: which are worth it, how their files are made, and getting the bytes back.

A file is a header, which says whose bytes it has and their checksum, and one zstd frame. So it is checked at
each use without the catalogue, and need not be set aside after an unclean reboot as plain objects are.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from struct import Struct

import zstandard

from gpufs.cache.checksum import content_hash
from gpufs.cache.entry import charge_of

# Level 3 takes 1.4 to 3 times as long, for 0 to 11% less (docs/decisions.md).
_LEVEL = 1
_PIECE = 4096
# A sample is too short for the compressor to learn much: what gives 1.4 there gives 1.5 as a whole.
_SAMPLE_RATIO = 1.4
_HEADER = Struct("<16sQ")  # digest, checksum of the bytes


class Compression:
    """Any thread."""

    def __init__(self) -> None:
        self._sampler = zstandard.ZstdCompressor(level=_LEVEL)
        self._sampling = threading.Lock()
        # As many at once as leave processors to those who wait for something else.
        self._compressors: SimpleQueue[zstandard.ZstdCompressor] = SimpleQueue()
        for _ in range(max(1, len(os.sched_getaffinity(0)) // 2)):
            self._compressors.put(zstandard.ZstdCompressor(level=_LEVEL))
        self._local = threading.local()

    def promises(self, data: memoryview) -> bool:
        """Whether a sample of `data` compresses so well that it is worth trying. Takes microseconds."""
        if len(data) <= _PIECE:  # one disk block
            return False
        sample: bytes | memoryview = data
        if len(data) > 3 * _PIECE:
            middle = len(data) // 2
            sample = b"".join((data[:_PIECE], data[middle : middle + _PIECE], data[-_PIECE:]))
        with self._sampling:
            compressed = len(self._sampler.compress(sample))
        return compressed * _SAMPLE_RATIO <= len(sample)

    def pack(self, digest: bytes, data: memoryview) -> bytes | None:
        """The content of the object's file; None when it saves too little. May wait for its turn."""
        compressor = self._compressors.get()
        try:
            frame = compressor.compress(data)
        finally:
            self._compressors.put(compressor)
        # A third of the disk blocks at least: a compressed object costs at every open.
        if 3 * charge_of(_HEADER.size + len(frame)) > 2 * charge_of(len(data)):
            return None
        return _HEADER.pack(digest, content_hash(data)) + frame

    def unpack(self, digest: bytes, size: int, packed: bytes) -> memoryview | None:
        """The bytes of the object, which has `size`; None when the file is damaged."""
        if len(packed) < _HEADER.size:
            return None
        whose, checksum = _HEADER.unpack_from(packed)
        frame = memoryview(packed)[_HEADER.size :]
        try:
            # Before anything is allocated for what the frame says of itself.
            if whose != digest or zstandard.frame_content_size(frame) != size:
                return None
            data = self._decompressor().decompress(frame)
        except zstandard.ZstdError:
            return None
        return memoryview(data) if len(data) == size and content_hash(data) == checksum else None

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        """This thread's own: making one takes as long as decompressing a small object."""
        try:
            mine: zstandard.ZstdDecompressor = self._local.decompressor
        except AttributeError:
            mine = self._local.decompressor = zstandard.ZstdDecompressor()
        return mine
