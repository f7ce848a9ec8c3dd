"""What a data set looks like as a tree, from its files and from a source, in one comparable form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpufs.source import Entry, Kind, ObjectRef, Page, Source
from tests.conformance.labs import Files

Shape = dict[bytes, dict[bytes, tuple[Kind, int]]]  # directory -> name -> (kind, size)


def expected(files: Files) -> Shape:
    shape: Shape = defaultdict(dict)
    shape[b""] = {}
    for path, content in files.items():
        *parents, name = path.split(b"/")
        for depth, parent in enumerate(parents):
            shape[b"/".join(parents[:depth])][parent] = (Kind.DIRECTORY, 0)
            shape[b"/".join(parents[: depth + 1])]  # a directory, be there files in it or not
        if name:
            shape[b"/".join(parents)][name] = (Kind.FILE, len(content))
    return dict(shape)


def shape_of(entries: Iterable[Entry]) -> dict[bytes, tuple[Kind, int]]:
    """Fails on a name that comes twice."""
    shape: dict[bytes, tuple[Kind, int]] = {}
    for entry in entries:
        assert entry.name not in shape, f"{entry.name!r} is listed twice"
        shape[entry.name] = (entry.kind, entry.size)
    return shape


def entries_of(pages: Iterable[Page], directory: bytes) -> list[Entry]:
    """The entries of one directory's pages; fails unless the final page, and it alone, is the last."""
    pages = list(pages)
    assert {page.directory for page in pages} == {directory}
    assert [page.last for page in pages] == [False] * (len(pages) - 1) + [True]
    return [entry for page in pages for entry in page.entries]


def listed(source: Source, directory: bytes = b"") -> dict[bytes, Entry]:
    return {entry.name: entry for entry in entries_of(source.list(directory), directory)}


def by_lists(source: Source) -> Shape:
    shape: Shape = {}
    pending = [b""]
    while pending:
        directory = pending.pop()
        shape[directory] = shape_of(entries_of(source.list(directory), directory))
        for name, (kind, _) in shape[directory].items():
            if kind is Kind.DIRECTORY:
                pending.append(directory + b"/" + name if directory else name)
    return shape


def by_walk(source: Source) -> Shape:
    """Fails where a directory's pages come before its own name did."""
    pages: dict[bytes, list[Page]] = defaultdict(list)
    announced = {b""}
    for batch in source.walk():
        for page in batch:
            assert page.directory in announced, f"{page.directory!r} comes before its parent's page"
            pages[page.directory].append(page)
            prefix = page.directory + b"/" if page.directory else b""
            announced.update(prefix + e.name for e in page.entries if e.kind is Kind.DIRECTORY)
    return {directory: shape_of(entries_of(found, directory)) for directory, found in pages.items()}


def ref(source: Source, path: bytes) -> ObjectRef:
    entry = source.stat(path)
    return ObjectRef(path, entry.version, entry.size)
