"""An index with files in its root, for tests of what fetches them."""

from __future__ import annotations

from gpufs.index import ROOT, Index, Inode
from gpufs.source.base import Entry, Kind, Page


def add_files(index: Index, count: int, size: int) -> list[Inode]:
    """`count` files of `size` bytes: 000000, 000001 and so on, of versions v0, v1 and so on."""
    entries = [Entry(b"%06d" % n, Kind.FILE, size, 1, f"v{n}") for n in range(count)]
    with index.write() as writer:
        listing = writer.begin(ROOT, 1)
        writer.add(listing, Page(b"", entries, [], True))
        writer.finish(listing)
    return index.children(ROOT, None, count)
