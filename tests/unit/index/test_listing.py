"""What a listing does to what is already known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.index.index import Index
from gpufs.index.records import ROOT, Change, Totals
from gpufs.source.base import Entry, Hidden, Kind, Page
from tests.unit.index.helpers import at, check_invariants, directory, file, fill, names, opened


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with opened(tmp_path / "index") as index:
        yield index
        check_invariants(index)


def changed(*names_: str, parent: int = ROOT) -> list[Change]:
    return [Change(parent, name.encode()) for name in names_]


def test_a_first_listing_has_no_changes(index: Index) -> None:
    assert fill(index, "", [file("a"), directory("d")], [file("0"), file("z")]) == []


def test_an_unchanged_listing_keeps_every_inode(index: Index) -> None:
    entries = [
        file("a", "1"),
        directory("d"),
        Entry(b"l", Kind.SYMLINK, 1, 1, target=b"a"),
        Entry(b"m", Kind.FILE, 1, 1, "v", 0o600, 1, 1),
    ]
    fill(index, "", entries)
    before = index.children(ROOT, None, 9)
    assert fill(index, "", reversed(entries)) == []
    assert index.children(ROOT, None, 9) == before


def test_a_name_that_was_denied_before_is_a_change(index: Index) -> None:
    fill(index, "", [file("a")])
    assert fill(index, "", [file("a"), file("b")], [file("c")]) == changed("b", "c")


@pytest.mark.parametrize(
    "new",
    [
        Entry(b"a", Kind.FILE, 1, 1, "w"),
        Entry(b"a", Kind.FILE, 2, 1, "v"),
        Entry(b"a", Kind.FILE, 1, 1, "v", mode=0o600),
        Entry(b"a", Kind.FILE, 1, 1, "v", uid=0),
        Entry(b"a", Kind.FILE, 1, 1, "v", gid=0),
        Entry(b"a", Kind.SYMLINK, 1, 1, "v", target=b"v"),
    ],
)
def test_a_changed_object_is_a_new_inode_and_the_old_one_stays(index: Index, new: Entry) -> None:
    fill(index, "", [Entry(b"a", Kind.FILE, 1, 1, "v")])
    old = at(index, "a")
    assert fill(index, "", [new]) == changed("a")
    assert at(index, "a").number > old.number
    assert index.get(old.number) == old


def test_a_new_time_of_the_same_version_is_a_new_inode_with_the_same_digest(index: Index) -> None:
    fill(index, "", [file("a", "x", mtime_ns=1)])
    old = at(index, "a")
    assert fill(index, "", [file("a", "x", mtime_ns=2)]) == changed("a")
    new = at(index, "a")
    assert new.number != old.number and new.digest == old.digest and new.mtime_ns == 2


def test_a_directory_without_a_time_keeps_the_time_it_was_first_seen(index: Index) -> None:
    before = time.time_ns()
    fill(index, "", [directory("d")])
    first = at(index, "d")
    assert before <= first.mtime_ns <= time.time_ns()
    assert fill(index, "", [directory("d")]) == []
    assert at(index, "d") == first


def test_a_directory_keeps_its_number_when_its_attributes_change(index: Index) -> None:
    """Its name stays right, so that nobody below it is disturbed: a change of its own is reported."""
    fill(index, "", [directory("d", mtime_ns=5)])
    first = at(index, "d")
    changed = Entry(b"d", Kind.DIRECTORY, mtime_ns=6, mode=0o700)
    assert fill(index, "", [changed]) == [Change(first.number, b"")]
    assert fill(index, "", [changed]) == []
    second = at(index, "d")
    assert (second.number, second.mtime_ns, second.mode) == (first.number, 6, 0o700)


def test_names_that_are_gone_are_removed_at_the_end_of_the_listing(index: Index) -> None:
    fill(index, "", [file("a"), file("b", "123"), file("c")])
    with index.write() as writer:
        listing = writer.begin(ROOT, time.time_ns())
        assert writer.add(listing, Page(b"", [file("a"), file("c")], [], True)) == []
    assert names(index) == ["a", "b", "c"]
    with index.write() as writer:
        assert writer.finish(listing) == changed("b")
    assert names(index) == ["a", "c"]


def test_many_vanished_names_in_any_order(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufs.index.listing._SWEEP", 7)
    everything = [file(f"{n * 7919 % 1000:03}") for n in range(1000)]
    fill(index, "", *(everything[at : at + 100] for at in range(0, 1000, 100)))
    kept = [entry for entry in everything if int(entry.name) % 3]
    kept.reverse()
    removed = fill(index, "", *(kept[at : at + 50] for at in range(0, len(kept), 50)))
    assert sorted(int(change.name) for change in removed) == list(range(0, 1000, 3))
    assert names(index) == sorted(entry.name.decode() for entry in kept)


def test_a_removed_directory_takes_everything_below_with_it(index: Index) -> None:
    fill(index, "", [directory("d"), directory("e")])
    fill(index, "d", [directory("d"), file("f", "1")], hidden=[Hidden(b"/x", "empty name", 2)])
    fill(index, "d/d", [file(f"{n:05}", "12") for n in range(3000)])
    fill(index, "e", [file("kept", "1")])
    deep = at(index, "d/d/00007")
    d = at(index, "d")
    assert index.totals() == Totals(3002, 3, 6002, 2)
    assert fill(index, "", [directory("e")]) == changed("d")
    assert index.totals() == Totals(1, 1, 1, 0)
    assert index.resolve(b"d/d/00007") is None
    assert index.get(deep.number) == deep
    assert index.path(deep.number) == b"d/d/00007"
    assert index.children(d.number, None, 9) == []
    assert index.listed(d.number) is None
    assert names(index, "e") == ["kept"]


def test_a_directory_that_comes_back_is_another_one(index: Index) -> None:
    fill(index, "", [directory("d")])
    first = at(index, "d").number
    fill(index, "", [])
    assert fill(index, "", [directory("d")]) == changed("d")
    assert at(index, "d").number > first


@pytest.mark.parametrize(
    "order", ["file first", "directory first", "two pages", "two pages, directory first"]
)
def test_a_directory_wins_over_a_file_of_the_same_name(index: Index, order: str) -> None:
    both = [file("out", "123"), directory("out")]
    if order.endswith("directory first"):
        both.reverse()
    pages = [[both[0]], [both[1]]] if order.startswith("two") else [both]
    for _ in range(3):
        fill(index, "", *pages)
        assert names(index) == ["out"]
        assert at(index, "out").kind is Kind.DIRECTORY
        assert index.hidden(9) == [(b"out", "a directory has the same name")]
        assert index.totals() == Totals(0, 1, 0, 1)


def test_a_shadowed_file_does_not_disturb_the_directory_at_a_refresh(index: Index) -> None:
    fill(index, "", [file("out"), directory("out")])
    fill(index, "out", [file("x")])
    before = at(index, "out/x")
    assert fill(index, "", [file("out")], [directory("out")]) == []
    assert at(index, "out/x") == before


def test_a_file_comes_out_when_the_directory_above_it_goes(index: Index) -> None:
    fill(index, "", [file("out", "1"), directory("out")])
    assert fill(index, "", [file("out", "1")]) == changed("out")
    assert at(index, "out").kind is Kind.FILE
    assert index.hidden(9) == []


def test_a_file_becomes_a_directory_and_a_file_again(index: Index) -> None:
    fill(index, "", [file("v", "1")])
    old = at(index, "v")
    assert fill(index, "", [directory("v")]) == changed("v")
    assert index.totals() == Totals(0, 1, 0, 0)
    fill(index, "v", [file("1", "12")])
    assert index.get(old.number) == old
    assert fill(index, "", [file("v", "123")]) == changed("v")
    assert index.totals() == Totals(1, 0, 3, 0)
    assert index.resolve(b"v/1") is None


def test_an_older_listing_never_overwrites_a_newer_one(index: Index) -> None:
    now = time.time_ns()
    with index.write() as writer:
        old = writer.begin(ROOT, now - 100)
        writer.add(old, Page(b"", [file("old")], [], False))
    fill(index, "", [file("new")], started_ns=now)
    with index.write() as writer:
        assert writer.add(old, Page(b"", [file("older")], [Hidden(b"/", "no")], True)) == []
        assert writer.finish(old) == []
    assert names(index) == ["new"]
    listed = index.listed(ROOT)
    assert listed is not None and listed.at_ns == now


def test_a_listing_of_a_directory_that_was_removed_meanwhile_does_nothing(index: Index) -> None:
    fill(index, "", [directory("d")])
    number = at(index, "d").number
    with index.write() as writer:
        listing = writer.begin(number, time.time_ns())
    fill(index, "", [])
    with index.write() as writer:
        assert writer.add(listing, Page(b"d", [file("x")], [], True)) == []
        assert writer.finish(listing) == []
    assert index.children(number, None, 9) == []
    assert index.listed(number) is None


def test_listings_of_several_directories_interleave(index: Index) -> None:
    now = time.time_ns()
    with index.write() as writer:
        root = writer.begin(ROOT, now)
        writer.add(root, Page(b"", [directory("a"), directory("b")], [], False))
    with index.write() as writer:
        a, b = (writer.begin(at(index, name).number, now) for name in "ab")
        writer.add(b, Page(b"b", [file("1")], [], False))
        writer.add(a, Page(b"a", [file("1")], [], True))
        writer.add(root, Page(b"", [file("c")], [], True))
        writer.finish(a)
        writer.add(b, Page(b"b", [file("2")], [], True))
        writer.finish(b)
        writer.finish(root)
    assert (names(index), names(index, "a"), names(index, "b")) == (["a", "b", "c"], ["1"], ["1", "2"])


def test_hidden_entries_are_replaced_by_each_listing(index: Index) -> None:
    fill(index, "", [directory("d")], hidden=[Hidden(b"/", "empty name", 4)])
    fill(index, "d", [], hidden=[Hidden(b"./", "dot", 2), Hidden(b"../", "dots")])
    assert index.totals().hidden == 7
    assert index.hidden(9) == [(b"/", "empty name"), (b"d/../", "dots"), (b"d/./", "dot")]
    assert len(index.hidden(2)) == 2
    fill(index, "d", [], hidden=[Hidden(b"./", "dot", 5)])
    assert index.totals().hidden == 9
    fill(index, "d", [])
    assert index.hidden(9) == [(b"/", "empty name")]


def test_the_same_hidden_name_on_two_pages_adds_up(index: Index) -> None:
    with index.write() as writer:
        listing = writer.begin(ROOT, time.time_ns())
        writer.add(listing, Page(b"", [], [Hidden(b"/", "empty name", 4)], False))
        writer.add(listing, Page(b"", [], [Hidden(b"/", "empty name", 3)], True))
        writer.finish(listing)
    assert index.totals().hidden == 7


def test_hidden_names_longer_than_a_key_are_kept_whole_and_apart(index: Index) -> None:
    long = [b"x" * 1000 + b"/" * n for n in range(3)]
    fill(index, "", [], hidden=[Hidden(name, "too long") for name in long])
    assert sorted(name for name, _ in index.hidden(9)) == sorted(long)


def test_names_of_255_bytes_fit_and_longer_ones_are_a_mistake_of_the_source(index: Index) -> None:
    fill(index, "", [file("n" * 255)])
    assert at(index, "n" * 255).name == b"n" * 255
    with pytest.raises(ValueError, match="impossible name"):
        fill(index, "", [file("n" * 256)])


def test_a_page_of_another_directory_is_refused(index: Index) -> None:
    with index.write() as writer:
        listing = writer.begin(ROOT, time.time_ns())
        with pytest.raises(ValueError, match="a page of"):
            writer.add(listing, Page(b"d", [], [], True))


def test_the_same_name_twice_in_a_listing_is_one_file(index: Index) -> None:
    fill(index, "", [file("a", "1"), file("a", "1")], [file("a", "22")])
    assert names(index) == ["a"]
    assert at(index, "a").size == 2


@pytest.mark.parametrize("first_to_finish", [0, 1])
def test_two_listings_at_once_lose_no_name(index: Index, first_to_finish: int) -> None:
    """A name met by both listings, in different versions, stays; and so does a new name of either."""
    fill(index, "", [file("changed", "0"), file("same"), file("gone")])
    with index.write() as writer:
        listings = [writer.begin(ROOT, time.time_ns()), writer.begin(ROOT, time.time_ns() + 1)]
        for number, listing in enumerate(listings):
            entries = [file("changed", str(number + 1)), file("same"), file(f"only{number}")]
            writer.add(listing, Page(b"", entries, [], last=True))
    for listing in (listings[first_to_finish], listings[1 - first_to_finish]):
        with index.write() as writer:
            writer.finish(listing)
        assert names(index) == ["changed", "only0", "only1", "same"]
    fill(index, "", [file("changed", "2"), file("same"), file("only1")])
    assert names(index) == ["changed", "only1", "same"]


def test_a_listing_tells_the_attributes_of_the_listed_directory_the_root_too(index: Index) -> None:
    """They are kept across listings of a source that knows none, and each change is reported once."""

    def list_root(mode: int, mtime_ns: int = 5) -> list[Change]:
        own = Entry(b"", Kind.DIRECTORY, mtime_ns=mtime_ns, mode=mode, uid=7, gid=8)
        with index.write() as writer:
            listing = writer.begin(ROOT, time.time_ns())
            changes = writer.add(listing, Page(b"", [], [], last=True, own=own))
            return changes + writer.finish(listing)

    assert list_root(0o700) == [Change(ROOT, b"")]
    root = at(index, "")
    assert (root.number, root.mode, root.uid, root.gid, root.mtime_ns) == (ROOT, 0o700, 7, 8, 5)
    assert list_root(0o700) == []
    assert list_root(0o750) == [Change(ROOT, b"")]
    assert list_root(0o750, mtime_ns=0) == []
    assert (at(index, "").mode, at(index, "").mtime_ns) == (0o750, 5)
