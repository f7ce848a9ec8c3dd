"""The tree of a flat store: what its requests for keys say, as directories and files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufs.errors import NotADirectory, NotFound, RemoteFailed
from gpufs.source.base import Abilities, Entry, Kind, Page

from .crew import Crew
from .listing import Listed, Listing
from .ranges import PARALLEL, Range, Splitter
from .tree import NotSorted, children

CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`


class FlatSource:
    """The objects whose keys start with `base` (empty, or ending in a slash). A kind of store adds how it is
    asked: `_list`, `_head`, `_name`, and the reading. `_begins_anywhere`: `_list` knows `after`."""

    _begins_anywhere = False

    def __init__(self, prefix: bytes) -> None:
        self._base = prefix + b"/" if prefix and not prefix.endswith(b"/") else prefix

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=True, pins_versions=True)

    def _list(
        self,
        prefix: bytes,
        *,
        delimiter: bool = False,
        token: str | None = None,
        after: bytes = b"",
        limit: int | None = None,
        deadline: float | None = None,
    ) -> Listing:
        """One request: keys with that prefix, in order; with `delimiter` those of one directory.

        `token` continues an earlier one; `after` starts behind a key.
        """
        raise NotImplementedError

    def _head(self, key: bytes, deadline: float | None = None) -> Listed | None:
        """What is stored at `key`; None when nothing is."""
        raise NotImplementedError

    def _name(self, key: bytes) -> str:
        """The object, or the whole store for an empty key, as people write it."""
        raise NotImplementedError

    def check(self) -> None:
        listing = self._list(self._base, limit=1, deadline=CHECK_DEADLINE)
        if listing.objects or listing.token or not self._base:
            return
        key = self._base.removesuffix(b"/")
        subject = self._name(key)
        if self._head(key, CHECK_DEADLINE) is not None:
            raise NotFound(f"{subject} is an object, not a prefix; mount the prefix above it")
        raise NotFound(f"{subject} names nothing: no key starts with it and a slash")

    def walk(self) -> Iterator[list[Page]]:
        found = False
        splitter = Splitter()
        with Crew[Range, Listing](PARALLEL) as crew:
            for part in splitter.ranges:
                self._ask(crew, part)
            while splitter.ranges:
                asked_ns = crew.oldest_ns()
                part, listing = crew.result()
                found = found or bool(listing.objects)
                if listing.token is None and not found and self._base:
                    self._nothing_at(b"")
                objects = splitter.accept(part, self._relative(listing))
                if part.token is not None:  # the next answer is on its way while this one is worked on
                    self._ask(crew, part)
                try:
                    pages = splitter.pages(part, objects)
                except NotSorted as error:
                    raise RemoteFailed(
                        f"{self._name(b'')}: the server lists keys in no order: {error}"
                    ) from error
                while self._begins_anywhere and (behind := splitter.split()) is not None:
                    self._ask(crew, behind)
                if pages:
                    yield [replace(page, asked_ns=asked_ns) for page in pages]

    def _ask(self, crew: Crew[Range, Listing], part: Range) -> None:
        token, after = part.token, self._base + part.after if part.after else b""
        crew.start(part, lambda: self._list(self._base, token=token, after=b"" if token else after))

    def _relative(self, listing: Listing) -> Listing:
        """The same answer, its keys relative to the root."""
        cut = len(self._base)
        if not cut:
            return listing
        return replace(listing, objects=[item._replace(key=item.key[cut:]) for item in listing.objects])

    def list(self, directory: bytes) -> Iterator[Page]:
        prefix = self._base + directory + b"/" if directory else self._base
        token: str | None = None
        found = False
        previous = None  # of the prefixes: some servers repeat one at the start of the next page
        while True:
            listing = self._list(prefix, delimiter=True, token=token)
            token = listing.token
            prefixes = [p for p in listing.prefixes if p != previous]
            previous = prefixes[-1] if prefixes else previous
            found = found or bool(listing.objects or prefixes)
            if token is None and not found and prefix:
                self._nothing_at(directory)
            yield Page(directory, *children(prefix, listing.objects, prefixes), last=token is None)
            if token is None:
                return

    def stat(self, path: bytes) -> Entry:
        name = path.rpartition(b"/")[2]
        if not path:
            return Entry(b"", Kind.DIRECTORY)
        key = self._base + path
        found = self._head(key)
        if found is not None:
            return Entry(name, Kind.FILE, found.size, found.mtime_ns, found.version)
        listing = self._list(key + b"/", limit=1)
        if not listing.objects and not listing.token:
            raise NotFound(f"{self._name(key)} does not exist")
        return Entry(name, Kind.DIRECTORY)

    def key(self, path: bytes) -> bytes:
        return self._base + path

    def _nothing_at(self, directory: bytes) -> None:
        """Raise what is right for a directory under which there is no key."""
        key = self._base + directory if directory else self._base.removesuffix(b"/")
        if self._head(key) is not None:
            raise NotADirectory(f"{self._name(key)} is an object")
        raise NotFound(f"{self._name(key)} does not exist")
