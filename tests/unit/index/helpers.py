"""Entries, listings in one call, and the invariants every index keeps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufs.index import records
from gpufs.index.index import Index
from gpufs.index.records import ROOT, Change, Inode, Totals
from gpufs.index.tables import HiddenRecord, unpack_number
from gpufs.source.base import Entry, Hidden, Kind, Page

SOURCE = "s3://bucket"


def file(name: str, text: str = "", mtime_ns: int = 5) -> Entry:
    return Entry(name.encode(), Kind.FILE, len(text), mtime_ns, hashlib.md5(text.encode()).hexdigest())


def directory(name: str, mtime_ns: int = 0) -> Entry:
    return Entry(name.encode(), Kind.DIRECTORY, mtime_ns=mtime_ns)


@contextmanager
def opened(folder: Path, source: str = SOURCE) -> Iterator[Index]:
    index = Index(folder, source)
    try:
        yield index
    finally:
        index.close()


def fill(
    index: Index,
    path: str,
    *pages: Iterable[Entry],
    hidden: Iterable[Hidden] = (),
    started_ns: int | None = None,
) -> list[Change]:
    """A whole listing, each page in a transaction of its own."""
    number = at(index, path).number
    changes: list[Change] = []
    with index.write() as writer:
        listing = writer.begin(number, started_ns or time.time_ns())
    for position, page in enumerate(pages):
        last = position + 1 == len(pages)
        with index.write() as writer:
            changes += writer.add(
                listing, Page(path.encode(), list(page), list(hidden) if last else [], last)
            )
    with index.write() as writer:
        changes += writer.finish(listing)
    return changes


def at(index: Index, path: str) -> Inode:
    inode = index.resolve(path.encode())
    assert inode is not None, path
    return inode


def names(index: Index, path: str = "") -> list[str]:
    return [inode.name.decode() for inode in index.children(at(index, path).number, None, 10**6)]


def check_invariants(index: Index) -> None:
    """Totals equal a recount, every name leads to its record, nothing is lost or left over."""
    tables = index._tables
    with index._env.begin() as txn:
        children = list(txn.cursor(tables.children))
        inodes = {unpack_number(key): value for key, value in txn.cursor(tables.inodes)}
        orphans = {unpack_number(key) for key, _ in txn.cursor(tables.orphans)}
        marks = {unpack_number(key) for key, _ in txn.cursor(tables.directories)}
        hidden = [
            (unpack_number(key), HiddenRecord.unpack(value)) for key, value in txn.cursor(tables.hidden)
        ]
    tree = {ROOT}
    files = size = 0
    for key, value in children:
        parent, name, number = unpack_number(key), key[8:], unpack_number(value)
        inode = records.decode(number, inodes[number])
        assert (inode.parent, inode.name) == (parent, name)
        assert number not in tree, "two names for one inode"
        assert records.kind_of(inodes[parent]) is Kind.DIRECTORY
        tree.add(number)
        if inode.kind is not Kind.DIRECTORY:
            files += 1
            size += inode.size if inode.kind is Kind.FILE else 0
    parents = {unpack_number(key) for key, _ in children}
    assert parents <= tree, "children of a directory that is not in the tree"
    assert inodes.keys() - tree == orphans
    assert not orphans & tree
    assert marks <= tree
    assert {number for number, _ in hidden} <= tree
    expected = Totals(files, len(tree) - 1 - files, size, sum(record.count for _, record in hidden))
    assert index.totals() == expected
