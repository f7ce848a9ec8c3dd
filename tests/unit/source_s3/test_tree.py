"""From keys to a tree: the flat walk and the listing of each directory must tell the same story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.source.base import Entry, Hidden, Kind, Page
from gpufs.source.flat.keys import split_key
from gpufs.source.flat.listing import Listed
from gpufs.source.flat.tree import NotSorted, Walk, children
from gpufs.source.s3.keys import plain_text

Tree = dict[bytes, tuple[list[Entry], list[Hidden]]]

PART = st.sampled_from(
    [b"", b".", b"..", b"a", b"b", b"a-b", b"a.b", b"a+", b"\0", b"..c", b"x" * 256, b"y" * 255]
)
KEYS = st.sets(st.lists(PART, min_size=1, max_size=5).map(b"/".join).filter(bool), max_size=40)


def listed(keys: Iterable[bytes]) -> list[Listed]:
    return [Listed(key, len(key), 5, "e" + key.hex()[:8]) for key in keys]


def walk(keys: Iterable[bytes], batch: int) -> tuple[list[list[Page]], Walk]:
    walker, items = Walk(), listed(keys)
    batches = [walker.feed(items[i : i + batch]) for i in range(0, len(items), batch)]
    return [*batches, walker.finish()], walker


def tree_of(pages: Iterable[Page]) -> Tree:
    tree: Tree = {}
    for page in pages:
        entries, hidden = tree.setdefault(page.directory, ([], []))
        entries += page.entries
        hidden += page.hidden
    return {
        d: (sorted(e, key=lambda x: (x.name, x.kind)), sorted(h, key=lambda x: x.name))
        for d, (e, h) in tree.items()
    }


def list_all(keys: set[bytes], directory: bytes = b"") -> Iterable[Page]:
    """What a server with delimiter=/ makes of `keys`, directory by directory."""
    prefix = directory + b"/" if directory else b""
    objects, prefixes = [], set()
    for key in sorted(keys):
        if key.startswith(prefix):
            head, slash, _ = key[len(prefix) :].partition(b"/")
            if slash:
                prefixes.add(prefix + head + b"/")
            else:
                objects.append(key)
    entries, hidden = children(prefix, listed(objects), sorted(prefixes))
    yield Page(directory, entries, hidden, True)
    for entry in entries:
        if entry.kind is Kind.DIRECTORY:
            yield from list_all(keys, prefix + entry.name)


def without_counts(tree: Tree) -> Tree:
    return {d: (e, [Hidden(h.name, h.reason) for h in hidden]) for d, (e, hidden) in tree.items()}


@given(KEYS, st.integers(1, 7))
def test_walk_and_list_give_the_same_tree(keys: set[bytes], batch: int) -> None:
    batches, _ = walk(sorted(keys), batch)
    walked = tree_of(page for pages in batches for page in pages)
    assert without_counts(walked) == tree_of(list_all(keys))


@given(KEYS, st.integers(1, 7))
def test_servers_that_sort_by_component_give_the_same_tree(keys: set[bytes], batch: int) -> None:
    by_component, _ = walk(sorted(keys, key=lambda k: k.split(b"/")), batch)
    by_byte, _ = walk(sorted(keys), batch)
    assert tree_of(p for b in by_component for p in b) == tree_of(p for b in by_byte for p in b)


@given(KEYS, st.integers(1, 7))
def test_every_key_is_a_file_a_marker_or_counted_as_hidden(keys: set[bytes], batch: int) -> None:
    batches, _ = walk(sorted(keys), batch)
    pages = [page for b in batches for page in b]
    files = sum(e.kind is Kind.FILE for p in pages for e in p.entries)
    hidden = sum(h.count for p in pages for h in p.hidden)
    markers = sum(split_key(k)[1:] == (None, None) for k in keys)
    assert files + hidden + markers == len(keys)


@given(KEYS, st.integers(1, 7))
def test_pages_keep_the_order_of_the_protocol(keys: set[bytes], batch: int) -> None:
    batches, _ = walk(sorted(keys), batch)
    known, closed = {b""}, Counter[bytes]()
    for pages in batches:
        assert len({p.directory for p in pages}) == len(pages)
        for page in pages:
            assert page.directory in known, "a page came before its parent named the directory"
            assert closed[page.directory] == 0, "a page came after the last one"
            closed[page.directory] += page.last
            prefix = page.directory + b"/" if page.directory else b""
            known.update(prefix + e.name for e in page.entries if e.kind is Kind.DIRECTORY)
    assert set(closed.elements()) == known


def test_only_the_path_to_the_current_key_is_kept() -> None:
    """Case 15: a great many directories of one object each; memory stays flat."""
    walker = Walk()
    for i in range(0, 20_000, 1000):
        walker.feed(listed(b"d%06d/sub/x" % n for n in range(i, i + 1000)))
        assert len(walker._stack) == 3
        assert walker._drafts == []


@pytest.mark.parametrize("keys", [[b"a/x", b"b/x", b"a/y"], [b"b", b"a"]])
def test_a_listing_in_no_order_is_refused(keys: list[bytes]) -> None:
    with pytest.raises(NotSorted):
        Walk().feed(listed(keys))


@pytest.mark.parametrize(
    ("key", "directories", "hidden"),
    [
        (b"exp2//a/b", [b"exp2"], b"/"),
        (b"exp2/./c", [b"exp2"], b"./"),
        (b"exp2/../d", [b"exp2"], b"../"),
        (b"/lead", [], b"/"),
        (b"//", [], b"/"),
        (b"d//", [b"d"], b"/"),
        (b"a/..", [b"a"], b".."),
        (b"a/" + b"n" * 256, [b"a"], b"n" * 256),
        (b"a/n\0/b", [b"a"], b"n\0/"),
    ],
)
def test_keys_no_path_can_name_hide_at_the_deepest_good_directory(
    key: bytes, directories: list[bytes], hidden: bytes
) -> None:
    found = split_key(key)
    assert found[:2] == (directories, None)
    assert found[2] is not None
    assert found[2].name == hidden


def test_a_marker_is_a_directory_and_no_file() -> None:
    assert split_key(b"a/b/") == ([b"a", b"b"], None, None)


def test_a_file_and_a_directory_of_one_name_are_both_told() -> None:
    """Case 3: the index decides which one wins."""
    batches, _ = walk([b"out", b"out/x"], 10)
    names = [(e.name, e.kind) for e in tree_of(p for b in batches for p in b)[b""][0]]
    assert names == [(b"out", Kind.FILE), (b"out", Kind.DIRECTORY)]


@pytest.mark.parametrize(
    "key", [b"", b"/a", b"a/", b"a//b", b"./a", b"a/..", b"a/./b", b"..", b"a\tb", b"a\x7f", b"a\n", b"\xff"]
)
def test_keys_obstore_would_change_or_refuse_go_the_other_way(key: bytes) -> None:
    assert plain_text(key) is None


@pytest.mark.parametrize(
    "key", ["a b", "%23", "a#?", "..a", "a..", "...", "é", "e\u0301", "\U0001f600", "\\", "~*'", "\x85"]
)
def test_other_keys_go_through_obstore(key: str) -> None:
    assert plain_text(key.encode()) == key
