"""The checksum of a cached object: what is hashed, and how a file is checked against it.

Up to one chunk: xxh3_64 of the content. Larger: xxh3_64 of the 8-byte little-endian hashes of the chunks,
one after the other, so an object filled chunk by chunk is never read again to know its checksum.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable

from xxhash import xxh3_64_intdigest

CHUNK = 4 * 2**20

# Stands for "not known" in the catalogue and "absent" in the map of a partial object.
NO_HASH = 0


def content_hash(data: memoryview | bytes) -> int:
    """xxh3_64 of one chunk; never NO_HASH."""
    return xxh3_64_intdigest(data) or 1


def combined_hash(chunk_hashes: bytes) -> int:
    """The checksum of an object from the hashes of its chunks, 8 bytes each."""
    if len(chunk_hashes) == 8:
        return int.from_bytes(chunk_hashes, "little")
    return xxh3_64_intdigest(chunk_hashes) or 1


def file_hash(fd: int, between_chunks: Callable[[int], None] = lambda _: None) -> int:
    """The checksum of an open file; OSError when it cannot be read. Called back with each chunk's length."""
    hashes = array("Q")
    offset = 0
    while data := os.pread(fd, CHUNK, offset):
        # A short read in the middle of a file would shift the chunks.
        while len(data) < CHUNK and (more := os.pread(fd, CHUNK - len(data), offset + len(data))):
            data += more
        hashes.append(content_hash(data))
        offset += len(data)
        between_chunks(len(data))
    return combined_hash(hashes.tobytes()) if hashes else content_hash(b"")
