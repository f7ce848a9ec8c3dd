"""A directory of a web server that shows an index of it, as a source.

An index page tells names; sizes and versions come from a HEAD per file, sixteen at once, because what pages
say of sizes is rounded or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpufs.errors import AccessDenied, NotADirectory, NotFound
from gpufs.metrics import Metrics
from gpufs.source.base import Abilities, Batch, Entry, Hidden, Kind, ObjectRef, Page
from gpufs.source.directories import walk_by_lists
from gpufs.source.flat.keys import fault_of
from gpufs.source.retry import Load

from .files import FilesSource, HttpFiles
from .page import names_in

_AT_ONCE = 16  # HEADs
_PAGE_SIZE = 1000
_CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`


_Names = list[bytes]  # HttpSource.list hides the builtin inside the class


class HttpSource(FilesSource):
    """Implements Source; `url` ends in a slash. Making one does no input or output."""

    def __init__(self, url: str, ca_bundle: Path | None, metrics: Metrics, load: Load | None = None) -> None:
        self._files = HttpFiles(url, ca_bundle, metrics, load)

    @property
    def id(self) -> str:
        return self._files.base

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=False, pins_versions=True)

    def check(self) -> None:
        self._names(b"", _CHECK_DEADLINE)

    def list(self, directory: bytes) -> Iterator[Page]:
        prefix = directory + b"/" if directory else b""
        names = self._names(directory)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gpufs http") as pool:
            for start in range(0, len(names) or 1, _PAGE_SIZE):
                part = names[start : start + _PAGE_SIZE]
                looked = [*pool.map(lambda name: self._look(prefix, name), part)]
                entries = [one for one in looked if isinstance(one, Entry)]
                hidden = [one for one in looked if isinstance(one, Hidden)]
                yield Page(directory, entries, hidden, last=start + _PAGE_SIZE >= len(names))

    def walk(self) -> Iterator[Batch]:
        return walk_by_lists(self)

    def stat(self, path: bytes) -> Entry:
        name = path.rpartition(b"/")[2]
        if not path:
            return Entry(b"", Kind.DIRECTORY)
        seen = self._files.head(path)
        if seen.size is not None:
            return Entry(name, Kind.FILE, seen.size, seen.mtime_ns, seen.version)
        self._files.get_text(path + b"/")  # NotFound for a file whose size nobody tells
        return Entry(name, Kind.DIRECTORY)

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        return self._files.read(ref, offset, length, spent, waited)

    def _names(self, directory: bytes, deadline: float | None = None) -> _Names:
        path = directory + b"/" if directory else b""
        try:
            answer = self._files.get_text(path, deadline)
        except NotFound:
            if directory and self._is_file(directory):
                raise NotADirectory(f"{self._files.url(directory)} is a file") from None
            raise
        except AccessDenied as error:
            raise AccessDenied(f"{error}; if the server shows no index of it, mount a manifest") from error
        if "html" not in answer.headers.get("content-type", ""):
            raise NotADirectory(f"{self._files.url(path)} is no index of a directory; mount a manifest")
        page = bytes(answer.body).decode("utf-8", "surrogateescape")
        return names_in(page, self._files.url(path), self._files.root + path)

    def _is_file(self, path: bytes) -> bool:
        try:
            return self._files.head(path).size is not None
        except NotFound:
            return False

    def _look(self, prefix: bytes, name: bytes) -> Entry | Hidden | None:
        plain = name.removesuffix(b"/")
        reason = fault_of(plain)
        if reason is not None:
            return Hidden(name, reason)
        if plain != name:
            return Entry(plain, Kind.DIRECTORY)
        try:
            seen = self._files.head(prefix + name)
        except NotFound:
            return None  # removed while we list
        except AccessDenied as error:
            return Hidden(name, f"cannot be looked at: {error}")
        if seen.size is None:
            return Hidden(name, "the server does not tell its size")
        return Entry(name, Kind.FILE, seen.size, seen.mtime_ns, seen.version)
