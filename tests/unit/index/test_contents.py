"""Index.contents(): what a hit needs to know of an inode, without the rest."""

from __future__ import annotations

from pathlib import Path

from gpufs.index import ROOT, Index
from gpufs.source.base import Entry, Kind, Page


def test_contents_are_those_of_the_whole_inode(tmp_path: Path) -> None:
    """For every kind of entry, with and without mode, owners and an ETag that is an MD5."""
    entries = [
        Entry(b"plain", Kind.FILE, 7, 1, "d41d8cd98f00b204e9800998ecf8427e"),
        Entry(b"other", Kind.FILE, 1 << 40, 1, "W/x", mode=0o640, uid=7, gid=8),
        Entry(b"empty", Kind.FILE, 0, 1, "v"),
        Entry(b"dir", Kind.DIRECTORY, mode=0o750),
        Entry(b"link", Kind.SYMLINK, 3, 1, target=b"dir"),
    ]
    index = Index(tmp_path / "index", "source")
    try:
        with index.write() as writer:
            listing = writer.begin(ROOT, 1)
            writer.add(listing, Page(b"", entries, [], True))
            writer.finish(listing)
        inodes = index.children(ROOT, None, 10)
        assert len(inodes) == len(entries)
        for inode in inodes:
            assert index.contents(inode.number) == (inode.digest, inode.size)
            assert bool(inode.digest) == (inode.kind is Kind.FILE)
        assert index.contents(10**6) is None
    finally:
        index.close()
