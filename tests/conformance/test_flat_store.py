"""Sources over a flat store: keys that no tree can have are hidden, and hide nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpufs.source import Kind, Page, Source
from tests.conformance.labs import Lab
from tests.conformance.tree import by_lists, by_walk, entries_of, expected, listed, ref

# Case 4 of the field inputs and its kind: directory -> names as the source spells them -> keys behind.
NO_PATH = {
    b"exp2//a/b": b"1",
    b"exp2//c": b"2",
    b"exp2/./c": b"3",
    b"exp2/../d": b"4",
    b"/lead": b"5",
    b"n" * 300: b"6",
}
HIDDEN = {b"exp2": {b"/": 2, b"./": 1, b"../": 1}, b"": {b"/": 1, b"n" * 300: 1}}


def hidden_of(pages: Iterable[Page]) -> dict[bytes, dict[bytes, int]]:
    """directory -> name -> how many keys are behind it."""
    hidden: dict[bytes, dict[bytes, int]] = defaultdict(lambda: defaultdict(int))
    for page in pages:
        for one in page.hidden:
            assert one.reason
            hidden[page.directory][one.name] += one.count
    return hidden


def walked(source: Source) -> dict[bytes, dict[bytes, int]]:
    return hidden_of(page for batch in source.walk() for page in batch)


def test_a_key_that_is_also_a_prefix_comes_as_file_and_as_directory(flat_lab: Lab) -> None:
    """Case 3, the source's half of it: `out` and `out/x` are both told, by list and by walk, be there
    other keys between them or not. The index shows the directory and counts the file."""
    flat_lab.fill({b"out": b"1", b"out-": b"2", b"out/x": b"seen", b"d/in": b"3", b"d/in/x": b"4"})
    source = flat_lab.source()
    root = [
        (b"d", Kind.DIRECTORY),
        (b"out", Kind.FILE),
        (b"out", Kind.DIRECTORY),
        (b"out-", Kind.FILE),
    ]
    below = [(b"in", Kind.FILE), (b"in", Kind.DIRECTORY)]
    pages = [page for batch in source.walk() for page in batch]
    for directory, names in ((b"", root), (b"d", below)):
        entries = entries_of(source.list(directory), directory)
        assert sorted((e.name, e.kind) for e in entries) == names
        entries = entries_of([p for p in pages if p.directory == directory], directory)
        assert sorted((e.name, e.kind) for e in entries) == names
    assert bytes(source.read(ref(source, b"out/x"), 0, 4)) == b"seen"


def test_keys_that_no_path_can_name_are_hidden_and_counted(flat_lab: Lab) -> None:
    files = {b"exp2/ok": b"ok", b"zz": b"1"}
    flat_lab.fill(files | NO_PATH)
    source = flat_lab.source()
    assert by_lists(source) == by_walk(source) == expected(files)
    assert walked(source) == HIDDEN
    for directory, names in HIDDEN.items():  # a listing may not know how many keys are behind a name
        assert set(hidden_of(source.list(directory))[directory]) == set(names)
    assert bytes(source.read(ref(source, b"exp2/ok"), 0, 2)) == b"ok"


def test_a_directory_marker_is_no_file(flat_lab: Lab) -> None:
    """Case 16: `d/` of size 0, alone and beside files."""
    flat_lab.fill({b"d/": b"", b"e/": b"", b"e/f": b"x"})
    source = flat_lab.source()
    assert by_lists(source) == by_walk(source) == expected({b"d/": b"", b"e/f": b"x"})
    assert walked(source) == {}
    assert listed(source, b"d") == {}
