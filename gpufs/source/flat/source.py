"""The tree of a flat store: what its requests for keys say, as directories and files."""

from __future__ import annotations

from collections.abc import Iterator

from gpufs.errors import NotADirectory, NotFound, RemoteFailed
from gpufs.source.base import Abilities, Entry, Kind, Page

from .listing import Listed, Listing
from .tree import NotSorted, Walk, children

CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`


class FlatSource:
    """The objects whose keys start with `base` (empty, or ending in a slash). A kind of store adds how it is
    asked: `_list`, `_head`, `_name`, and the reading."""

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
        limit: int | None = None,
        deadline: float | None = None,
    ) -> Listing:
        """One request: keys with that prefix, in order; with `delimiter` those of one directory."""
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
        walk = Walk()
        token: str | None = None
        found = False
        cut = len(self._base)
        while True:
            listing = self._list(self._base, token=token)
            token = listing.token
            found = found or bool(listing.objects)
            if token is None and not found and self._base:
                self._nothing_at(b"")
            try:
                pages = walk.feed(item._replace(key=item.key[cut:]) for item in listing.objects)
            except NotSorted as error:
                raise RemoteFailed(
                    f"{self._name(b'')}: the server lists keys in no order: {error}"
                ) from error
            if token is None:
                # one batch: what closes now continues the pages of the last answer
                yield [*pages, *walk.finish()]
                return
            yield pages

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
