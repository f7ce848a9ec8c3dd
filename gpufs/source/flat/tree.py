"""From a flat, sorted listing to directories: the walk that never holds more than it must."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpufs.source.base import Entry, Hidden, Kind, Page

from .keys import fault_of, split_key
from .listing import Listed


class NotSorted(ValueError):
    """The listing is in no order a tree can be built from."""


def file_entry(name: bytes, item: Listed) -> Entry:
    return Entry(name, Kind.FILE, size=item.size, mtime_ns=item.mtime_ns, version=item.version)


def children(
    prefix: bytes, objects: Iterable[Listed], prefixes: Iterable[bytes]
) -> tuple[list[Entry], list[Hidden]]:
    """What a LIST with delimiter `/` under `prefix` says about that one directory."""
    entries: list[Entry] = []
    hidden: list[Hidden] = []
    cut = len(prefix)
    for item in objects:
        name = item.key[cut:]
        if not name:  # the directory's own marker
            continue
        reason = fault_of(name)
        if reason is None:
            entries.append(file_entry(name, item))
        else:
            hidden.append(Hidden(name, reason))
    for text in prefixes:
        name = text[cut:].removesuffix(b"/")
        reason = fault_of(name)
        if reason is None:
            entries.append(Entry(name, Kind.DIRECTORY))
        else:
            hidden.append(Hidden(name + b"/", reason))
    return entries, hidden


@dataclass(slots=True)
class _Open:
    """A directory whose keys are passing by; `page` is its part of the current batch."""

    path: bytes
    page: _Draft | None = None
    hidden: Hidden | None = None  # still being counted


@dataclass(slots=True)
class _Draft:
    directory: bytes
    entries: list[Entry] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    last: bool = False


class Sharing:
    """How many walks of a listing in ranges have a directory open: the last one that leaves it closes it."""

    def __init__(self) -> None:
        self._walks: dict[bytes, int] = {}  # of more than one walk only

    def join(self, path: bytes) -> None:
        """One more walk has the directory open, beside another."""
        self._walks[path] = self._walks.get(path, 1) + 1

    def leave(self, path: bytes) -> bool:
        """Whether nobody else has it open."""
        walks = self._walks.pop(path, 1)
        if walks > 2:
            self._walks[path] = walks - 1
        return walks == 1


class Walk:
    """Turns batches of a flat listing into batches of pages, depth first.

    All keys of a directory stand together in S3's order (and in that of servers that walk a real
    tree), so a directory is complete when the first key outside it comes by: only the directories
    from the root to the current key are ever open.

    A walk may cover a range of the keys only, those behind `after`. `directories` are then those that the
    walk of the keys before has open as well, the innermost one's components.
    """

    def __init__(
        self, sharing: Sharing | None = None, directories: list[bytes] | None = None, after: bytes = b""
    ) -> None:
        self._sharing = sharing or Sharing()
        self._stack = [_Open(b"")]
        self._names: list[bytes] = []  # components of the path of the innermost open directory
        self._drafts: list[_Draft] = []
        self._previous = after
        if directories is not None:
            self._names = directories
            self._stack += [_Open(b"/".join(directories[: depth + 1])) for depth in range(len(directories))]
            for here in self._stack:
                self._sharing.join(here.path)

    def feed(self, objects: Iterable[Listed]) -> list[Page]:
        """The pages that this batch adds to; keys are relative to the root. Raises NotSorted."""
        for item in objects:
            key = item.key
            if not key:  # the root's own marker
                continue
            if key < self._previous and key.split(b"/") < self._previous.split(b"/"):
                raise NotSorted(f"{key!r} came after {self._previous!r}")
            self._previous = key
            directories, name, hidden = split_key(key)
            if directories != self._names:
                self._move_to(directories)
            here = self._stack[-1]
            if hidden is not None:
                self._hide(here, hidden)
            elif name is not None:
                self._draft(here).entries.append(file_entry(name, item))
        return self._take()

    def finish(self) -> list[Page]:
        """The pages that close whatever is open."""
        while self._stack:
            self._close()
        return self._take()

    def _move_to(self, directories: list[bytes]) -> None:
        common = 0
        for old, new in zip(self._names, directories, strict=False):
            if old != new:
                break
            common += 1
        while len(self._stack) - 1 > common:
            self._close()
        for name in directories[common:]:
            parent = self._stack[-1]
            self._draft(parent).entries.append(Entry(name, Kind.DIRECTORY))
            self._stack.append(_Open(parent.path + b"/" + name if parent.path else name))
        self._names = directories

    def _hide(self, here: _Open, hidden: Hidden) -> None:
        if here.hidden is not None:
            if here.hidden.name == hidden.name:
                here.hidden = replace(here.hidden, count=here.hidden.count + 1)
                return
            self._draft(here).hidden.append(here.hidden)
        here.hidden = hidden

    def _draft(self, here: _Open) -> _Draft:
        if here.page is None:
            here.page = _Draft(here.path)
            self._drafts.append(here.page)
        return here.page

    def _close(self) -> None:
        here = self._stack.pop()
        if here.hidden is not None:
            self._draft(here).hidden.append(here.hidden)
        if self._sharing.leave(here.path):
            self._draft(here).last = True

    def _take(self) -> list[Page]:
        drafts, self._drafts = self._drafts, []
        for here in self._stack:
            here.page = None
        return [Page(d.directory, d.entries, d.hidden, d.last) for d in drafts]
