"""The files a manifest names, as a source: no request per file, and no index page needed.

A manifest is a text in UTF-8 with a file per line, either `path,size[,etag]` (CSV: a path with a comma or a
quote goes in quotes; a first line `path,size,etag` is a heading) or a JSON object with "path", "size" and
perhaps "etag". Paths are relative to the manifest's own directory.
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from gpufs.errors import NotADirectory, NotFound, RemoteFailed
from gpufs.metrics import Metrics
from gpufs.source.base import Abilities, Batch, Entry, Hidden, Kind, ObjectRef, Page
from gpufs.source.flat.keys import split_key
from gpufs.source.retry import Load
from gpufs.source.web import Answer

from .files import FilesSource, HttpFiles

_CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`
_UNKNOWN = "unknown of size "  # the version of a file of which the manifest tells no ETag


@dataclass(slots=True)
class _Directory:
    entries: dict[bytes, Entry] = field(default_factory=dict)
    hidden: list[Hidden] = field(default_factory=list)


_Tree = dict[bytes, _Directory]


class ManifestSource(FilesSource):
    """Implements Source; `url` is the manifest's. It is asked for anew with every listing, by its ETag."""

    def __init__(self, url: str, ca_bundle: Path | None, metrics: Metrics, load: Load | None = None) -> None:
        base, _, name = url.rpartition("/")
        self._name = unquote_to_bytes(urlsplit(f"x://x/{name}").path[1:])
        self._files = HttpFiles(base + "/", ca_bundle, metrics, load)
        self._lock = threading.Lock()
        self._tree: _Tree | None = None
        self._etag = ""

    @property
    def id(self) -> str:
        return self._files.url(self._name)

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=True, pins_versions=False)

    def check(self) -> None:
        self._load(_CHECK_DEADLINE)

    def list(self, directory: bytes) -> Iterator[Page]:
        tree = self._load()
        here = tree.get(directory)
        if here is None:
            if _find(tree, directory) is not None:
                raise NotADirectory(f"{self._files.url(directory)} is a file")
            raise NotFound(f"{self._files.url(directory)} is not in the manifest")
        yield _page(directory, here)

    def walk(self) -> Iterator[Batch]:
        tree = self._load()
        for directory in sorted(tree, key=lambda path: path.split(b"/")):
            yield [_page(directory, tree[directory])]

    def stat(self, path: bytes) -> Entry:
        if not path:
            return Entry(b"", Kind.DIRECTORY)
        found = _find(self._load(), path)
        if found is None:
            raise NotFound(f"{self._files.url(path)} is not in the manifest")
        return found

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        unknown = ref.version.startswith(_UNKNOWN)
        return self._files.read(ref, offset, length, spent, waited, _anything if unknown else None)

    def _load(self, deadline: float | None = None) -> _Tree:
        with self._lock:
            answer = self._files.get_text(self._name, deadline, self._etag if self._tree is not None else "")
            if answer.status == 200 or self._tree is None:
                self._tree = _tree_of(bytes(answer.body).decode("utf-8", "surrogateescape"), self.id)
                self._etag = answer.headers.get("etag", "")
            return self._tree


def _anything(answer: Answer) -> bool:
    return True


def _tree_of(text: str, name: str) -> _Tree:
    """Raises RemoteFailed with the line that cannot be read."""
    tree: _Tree = {b"": _Directory()}
    lines = text.splitlines()
    as_json = text.lstrip()[:1] == "{"
    rows: Iterable[Any] = map(json.loads, filter(str.strip, lines)) if as_json else csv.reader(lines)
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            if not row or (number == 1 and not as_json and row[1:2] == ["size"]):
                continue
            if as_json:
                path, size, etag = row["path"], int(row["size"]), row.get("etag") or ""
            else:
                path, size, etag = row[0], int(row[1]), row[2] if len(row) > 2 else ""
            if size < 0:
                raise ValueError("a negative size")
            _add(tree, path.encode("utf-8", "surrogateescape"), size, etag.strip())
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, csv.Error) as error:
        raise RemoteFailed(
            f"{name}, entry {number}: no path and size ({type(error).__name__}: {error}); a manifest has "
            "lines path,size[,etag], or JSON objects with these names"
        ) from error
    return tree


def _add(tree: _Tree, key: bytes, size: int, etag: str) -> None:
    directories, name, hidden = split_key(key)
    path = b""
    for part in directories:
        below = path + b"/" + part if path else part
        if below not in tree:
            tree[below] = _Directory()
            tree[path].entries[part] = Entry(part, Kind.DIRECTORY)
        path = below
    here = tree[path]
    if hidden is not None:
        here.hidden.append(hidden)
    elif name is not None and (path + b"/" + name if path else name) not in tree:
        version = (etag if etag.startswith("W/") else etag.strip('"')) or f"{_UNKNOWN}{size}"
        here.entries[name] = Entry(name, Kind.FILE, size, version=version)


def _find(tree: _Tree, path: bytes) -> Entry | None:
    parent, _, name = path.rpartition(b"/")
    here = tree.get(parent)
    return here.entries.get(name) if here is not None else None


def _page(directory: bytes, here: _Directory) -> Page:
    return Page(directory, [*here.entries.values()], here.hidden, last=True)
