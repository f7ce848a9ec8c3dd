"""Random listings, compared with a plain dictionary (hypothesis)."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpufs.errors import NotFound
from gpufs.index.index import Index
from gpufs.index.listing import Listing
from gpufs.index.records import ROOT, Change, Inode, Totals, digest_of
from gpufs.source.base import Entry, Hidden, Kind, Page
from tests.unit.index.helpers import SOURCE, check_invariants


def _entry(*values, **more):
    """An Entry of these values and its defaults: builds() would make up the fields of a named tuple."""
    return Entry(*values, **more)


_NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
_PATHS = st.lists(_NAMES, max_size=2).map(b"/".join)
_FILES = st.builds(
    _entry, _NAMES, st.just(Kind.FILE), st.integers(0, 2), st.integers(1, 2), st.sampled_from(["v", "a" * 32])
)
_ENTRIES = st.one_of(
    _FILES,
    st.builds(_entry, _NAMES, st.just(Kind.DIRECTORY), st.just(0), st.integers(0, 2)),
    st.builds(_entry, _NAMES, st.just(Kind.SYMLINK), target=st.sampled_from([b"x", b"y"])),
)
_HIDDEN = st.builds(Hidden, st.sampled_from([b"/", b"./"]), st.just("why"), st.integers(1, 3))
_PAGES = st.lists(
    st.tuples(st.lists(_ENTRIES, max_size=5), st.lists(_HIDDEN, max_size=1)), min_size=1, max_size=3
)
_SHADOWED = "a directory has the same name"


@dataclass
class Node:
    """What the model knows of a directory: the final answer of its last listing."""

    children: dict[bytes, tuple[Entry, Node]] = field(default_factory=dict)
    hidden: dict[bytes, int] = field(default_factory=dict)
    listed_ns: int | None = None


@dataclass
class Running:
    node: Node
    path: bytes
    listing: Listing
    started_ns: int
    pages: list[tuple[list[Entry], list[Hidden]]]


class IndexMachine(RuleBasedStateMachine):
    """Listings are merged whole, or begun and merged later when others have overtaken them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.index = Index(self.folder, SOURCE)
        self.root = Node()
        self.clock = 1000
        self.running: list[Running] = []
        self.every: dict[int, Inode] = {}

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)

    def node(self, path: bytes) -> Node | None:
        node = self.root
        for name in path.split(b"/") if path else []:
            entry, below = node.children.get(name, (None, None))
            if entry is None or below is None or entry.kind is not Kind.DIRECTORY:
                return None
            node = below
        return node

    def is_live(self, node: Node) -> bool:
        pending = [self.root]
        while pending:
            each = pending.pop()
            if each is node:
                return True
            pending += [below for _, below in each.children.values()]
        return False

    def begin(self, path: bytes, pages: list[tuple[list[Entry], list[Hidden]]]) -> Running | None:
        node = self.node(path)
        inode = self.index.resolve(path)
        if node is None:
            assert inode is None or inode.kind is not Kind.DIRECTORY
            return None
        assert inode is not None
        self.clock += 10
        with self.index.write() as writer:
            listing = writer.begin(inode.number, self.clock)
        return Running(node, path, listing, self.clock, pages)

    def merge(self, running: Running) -> None:
        known = self.numbers()
        changes: list[Change] = []
        for number, (entries, hidden) in enumerate(running.pages):
            with self.index.write() as writer:
                last = number + 1 == len(running.pages)
                changes += writer.add(running.listing, Page(running.path, entries, hidden, last))
        with self.index.write() as writer:
            changes += writer.finish(running.listing)
        node = running.node
        superseded = node.listed_ns is not None and node.listed_ns > running.started_ns
        if superseded or not self.is_live(node):
            assert changes == []
            assert self.numbers() == known
            return
        was_listed = node.listed_ns is not None
        self.model(running, self.below(known, running.path))
        self.check_changes(running, known, changes, was_listed)

    def model(self, running: Running, known: dict[bytes, int]) -> None:
        node = running.node
        final: dict[bytes, Entry] = {}
        shadowed: set[bytes] = set()
        hidden: dict[bytes, int] = {}
        for entries, hides in running.pages:
            for entry in entries:
                old = final.get(entry.name)
                if old is not None and (old.kind is Kind.DIRECTORY) != (entry.kind is Kind.DIRECTORY):
                    shadowed.add(entry.name)
                    if old.kind is Kind.DIRECTORY:
                        continue
                final[entry.name] = entry
            for each in hides:
                hidden[each.name] = hidden.get(each.name, 0) + each.count
        hidden.update(dict.fromkeys(shadowed, 1))
        # What another listing put in since this one began, it cannot judge.
        children = {
            name: child
            for name, child in node.children.items()
            if name not in final and known[name] >= running.listing.first_new
        }
        for name, entry in final.items():
            before = node.children.get(name)
            stays = before is not None and before[0].kind is entry.kind is Kind.DIRECTORY
            children[name] = (entry, before[1] if stays and before is not None else Node())
        node.children, node.hidden, node.listed_ns = children, hidden, running.started_ns

    def check_changes(
        self, running: Running, known: dict[bytes, int], changes: list[Change], was_listed: bool
    ) -> None:
        """Every name of this directory that means something else now has been told."""
        named = [change for change in changes if change.name]  # the others: attributes of directories
        told = {change.name for change in named}
        assert {change.parent for change in named} <= {running.listing.directory}
        before = self.below(known, running.path)
        after = self.below(self.numbers(), running.path)
        for name in before.keys() | after.keys():
            gone_or_other = name in before and before[name] != after.get(name)
            appeared = was_listed and name not in before and name in after
            if gone_or_other or appeared:
                assert name in told
            elif name in before and before[name] == after.get(name):
                assert name not in told

    @staticmethod
    def below(numbers: dict[bytes, int], path: bytes) -> dict[bytes, int]:
        prefix = path + b"/" if path else b""
        return {
            key[len(prefix) :]: number
            for key, number in numbers.items()
            if key.startswith(prefix) and key and b"/" not in key[len(prefix) :]
        }

    def numbers(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        pending = [(b"", ROOT)]
        while pending:
            path, number = pending.pop()
            for inode in self.index.children(number, None, 100):
                full = path + b"/" + inode.name if path else inode.name
                found[full] = inode.number
                pending.append((full, inode.number))
        return found

    @rule(path=_PATHS, pages=_PAGES)
    def listing(self, path: bytes, pages: list[tuple[list[Entry], list[Hidden]]]) -> None:
        running = self.begin(path, pages)
        if running is not None:
            self.merge(running)

    @rule(path=_PATHS, pages=_PAGES)
    def slow_listing_starts(self, path: bytes, pages: list[tuple[list[Entry], list[Hidden]]]) -> None:
        running = self.begin(path, pages)
        if running is not None:
            self.running.append(running)

    @precondition(lambda self: self.running)
    @rule()
    def slow_listing_ends(self) -> None:
        self.merge(self.running.pop(0))

    @rule()
    def remount(self) -> None:
        self.index.close()
        self.index = Index(self.folder, SOURCE)

    @rule()
    def drop_orphans(self) -> None:
        self.running.clear()
        self.remount()
        live = {ROOT, *self.numbers().values()}
        stored = {number for number in self.every if self.index.get(number) is not None}
        # More may go: inodes that came and went within one listing.
        assert self.index.drop_orphans() >= len(stored - live)
        assert not [number for number in stored - live if self.index.get(number) is not None]
        self.every = {number: inode for number, inode in self.every.items() if number in live}

    @invariant()
    def agrees_with_the_model(self) -> None:
        check_invariants(self.index)
        files = directories = size = hidden = 0
        pending = [(b"", ROOT, self.root)]
        while pending:
            path, number, node = pending.pop()
            hidden += sum(node.hidden.values())
            listed = self.index.listed(number)
            assert (listed.at_ns if listed else None) == node.listed_ns
            found = self.index.children(number, None, 100)
            assert [inode.name for inode in found] == sorted(node.children)
            for inode in found:
                entry, below = node.children[inode.name]
                full = path + b"/" + inode.name if path else inode.name
                assert (inode.kind, inode.size, inode.version) == (entry.kind, entry.size, entry.version)
                assert inode.target == entry.target
                assert self.index.path(inode.number) == full
                assert self.index.resolve(full) == inode
                if entry.mtime_ns:
                    assert inode.mtime_ns == entry.mtime_ns
                if inode.kind is Kind.FILE:
                    assert inode.digest == digest_of(SOURCE, full, inode.version, inode.size)
                    size += inode.size
                if inode.kind is Kind.DIRECTORY:
                    directories += 1
                    pending.append((full, inode.number, below))
                else:
                    files += 1
                self.every.setdefault(inode.number, inode)
        assert self.index.totals() == Totals(files, directories, size, hidden)

    @invariant()
    def an_inode_never_changes(self) -> None:
        for number, inode in self.every.items():
            stored = self.index.get(number)
            assert stored is not None
            if inode.kind is Kind.DIRECTORY:
                assert (stored.kind, stored.parent, stored.name) == (inode.kind, inode.parent, inode.name)
            else:
                assert stored == inode

    @invariant()
    def a_removed_directory_cannot_be_listed(self) -> None:
        live = {ROOT, *self.numbers().values()}
        for number, inode in self.every.items():
            if inode.kind is Kind.DIRECTORY and number not in live:
                with self.index.write() as writer:
                    try:
                        writer.begin(number, self.clock)
                    except NotFound:
                        continue
                raise AssertionError("a listing of a removed directory")


TestIndexModel = IndexMachine.TestCase
TestIndexModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
