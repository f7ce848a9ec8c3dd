"""Every source: listing, walking and stat show the data set as it is."""

from __future__ import annotations

import pytest

from gpufs.errors import NotADirectory, NotFound
from gpufs.metrics import Metrics
from gpufs.source import Kind
from tests.conformance.labs import Lab
from tests.conformance.tree import by_lists, by_walk, entries_of, expected, listed, ref

# `-` and `.` sort before `/`, `0` after it: names that separate a directory from its like in a flat list.
FILES = {
    b"README.md": b"read me",
    b"a-b": b"1",
    b"a.b/z": b"22",
    b"a/deep/er/y": b"333",
    b"a/x": b"4444",
    b"a0/z": b"55555",
    b"empty": b"",
    b"last/only/one/file": b"x" * 1000,
}

# Case 5 of the field inputs, and their kind.
NAMES = [
    b"folder#1#",
    b"Hello World.jpg",
    b"a+b",
    b"%23",
    b"pct%2Fenc",
    b"q?x=1",
    b"back\\slash",
    b"a&b<c>\"'",
    "\U0001f680".encode(),
    "caf\u00e9".encode(),  # NFC
    "cafe\u0301".encode(),  # NFD
    b"tilde~*",
    b" lead and trail ",
    b"...",
    b"..x",
    b"-rf",
    b".hidden",
    b"a=b;c,d:e@f!$(g)[h]{i}|^`",
    b"tab\t, \x01 and \x7f",
    b"new\nline\r",
    b"n" * 255,
    b"not utf-8 \xff\xfe",
]


def test_lists_give_the_tree(lab: Lab) -> None:
    lab.fill(FILES)
    source = lab.source()
    source.check()
    assert by_lists(source) == expected(FILES)


def test_a_walk_gives_the_same_tree_parents_first(lab: Lab) -> None:
    lab.fill(FILES)
    assert by_walk(lab.source()) == expected(FILES)


def test_stat_agrees_with_the_list(lab: Lab) -> None:
    lab.fill(FILES)
    source = lab.source()
    for directory, names in expected(FILES).items():
        for name, entry in listed(source, directory).items():
            seen = source.stat(directory + b"/" + name if directory else name)
            assert (seen.name, seen.kind, seen.size) == (name, *names[name])
            assert (seen.version, seen.mode, seen.target) == (entry.version, entry.mode, entry.target)
    assert source.stat(b"").kind is Kind.DIRECTORY


def test_files_have_versions_and_times_directories_no_version(lab: Lab) -> None:
    lab.fill(FILES)
    entries = listed(lab.source())
    assert entries[b"a-b"].version
    assert entries[b"empty"].version
    assert entries[b"a-b"].mtime_ns > 1_500_000_000 * 10**9
    assert entries[b"a"].version == ""


def test_an_empty_data_set_is_one_empty_last_page(lab: Lab) -> None:
    lab.fill({})
    source = lab.source()
    source.check()
    assert by_lists(source) == by_walk(source) == {b"": {}}


def test_an_empty_directory(lab: Lab) -> None:
    files = {b"f": b"x", b"nothing/": b"", b"d/nothing/": b""}
    lab.fill(files)
    source = lab.source()
    assert by_lists(source) == by_walk(source) == expected(files)
    assert source.stat(b"nothing").kind is Kind.DIRECTORY


def test_a_missing_data_set_fails_the_check(lab: Lab) -> None:
    lab.fill({b"f": b"x"})
    with pytest.raises(NotFound):
        lab.missing().check()


@pytest.mark.parametrize("path", [b"none", b"a/none", b"none/none", b"a/x/none", b"READ", b"a/dee"])
def test_what_is_not_there_is_not_found(lab: Lab, path: bytes) -> None:
    lab.fill(FILES)
    source = lab.source()
    with pytest.raises(NotFound):
        source.stat(path)
    with pytest.raises(NotFound):
        list(source.list(path))


def test_the_list_of_a_file_is_refused(lab: Lab) -> None:
    lab.fill(FILES)
    source = lab.source()
    with pytest.raises(NotADirectory):
        list(source.list(b"a/x"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_are_kept_byte_for_byte(lab: Lab, name: bytes) -> None:
    """As a file, as a directory, beside others; listed, walked, stat'ed and read."""
    if not lab.holds(name):
        pytest.skip("the store itself cannot keep this name")
    files = {name: b"file", b"d/" + name + b"/" + name: b"below", b"beside": b"x"}
    lab.fill(files)
    source = lab.source()
    assert by_lists(source) == by_walk(source) == expected(files)
    for path, content in files.items():
        assert source.read(ref(source, path), 0, len(content)) == content


def test_nfc_and_nfd_of_a_name_are_two_files(lab: Lab) -> None:
    files = {"caf\u00e9".encode(): b"1", "cafe\u0301".encode(): b"22"}
    lab.fill(files)
    assert by_lists(lab.source()) == expected(files)


def test_thirty_levels(lab: Lab) -> None:
    path = b"/".join(b"level%d" % level for level in range(30))
    files = {path + b"/f": b"deep", b"level0/f": b"shallow"}
    lab.fill(files)
    source = lab.source()
    assert by_lists(source) == by_walk(source) == expected(files)


@pytest.mark.slow
def test_a_directory_of_2500_files_comes_in_pages(lab: Lab) -> None:
    files = {b"d/%04d" % number: b"" for number in range(2500)} | {b"d/0007x/f": b"1", b"z": b"1"}
    lab.fill(files)
    source = lab.source()
    pages = list(source.list(b"d"))
    assert len(pages) >= 3
    assert len(entries_of(pages, b"d")) == 2501
    assert by_lists(source) == by_walk(source) == expected(files)


def test_a_listing_may_be_left_halfway(lab: Lab) -> None:
    lab.fill(FILES)
    source = lab.source()
    next(iter(source.list(b"")))
    next(iter(source.walk()))
    assert by_walk(source) == expected(FILES)


def test_a_name_changes_between_file_and_directory(lab: Lab) -> None:
    """Case 14: `v` becomes `v/1`, and back."""
    lab.fill({b"v": b"file", b"w/1": b"below", b"x": b""})
    source = lab.source()
    assert listed(source)[b"v"].kind is Kind.FILE
    lab.delete(b"v")
    lab.fill({b"v/1": b"1"})
    lab.delete(b"w/1")
    if lab.keeps_directories:
        lab.delete(b"w")
    lab.fill({b"w": b"file"})
    assert by_lists(source) == expected({b"v/1": b"1", b"w": b"file", b"x": b""})


def test_the_id_is_the_same_for_the_same_data(lab: Lab) -> None:
    lab.fill(FILES)
    assert lab.source().id == lab.source().id != lab.missing().id


def test_requests_are_counted(lab: Lab) -> None:
    lab.fill(FILES)
    metrics = Metrics()
    source = lab.source(metrics)
    list(source.list(b""))
    before = metrics.remote_requests.value
    assert before >= 1
    source.stat(b"a-b")
    assert metrics.remote_requests.value > before
    assert metrics.remote_errors.value == 0
