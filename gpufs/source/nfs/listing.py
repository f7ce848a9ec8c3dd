"""Listing directories: names with their attributes and link targets, resumed where it was interrupted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpufs.errors import AccessDenied, GpufsError, NotADirectory, NotFound, RemoteFailed
from gpufs.source.base import Batch, Entry, Hidden, Kind, Page

from . import nfs3
from .entries import directory_entry, entry_of, text, unspeakable
from .handles import Handles
from .nfs3 import Failed, Found, Names
from .session import STALE, Requests, Session

_log = logging.getLogger(__name__)

_PART = 128 << 10  # bytes of one answer: 800 names of ten letters
_LARGEST_PART = 4 << 20
_MOST_BEGINNINGS = 20
_LONGEST_PATH = 4096  # bytes of a path that a walk goes into: a directory that contains itself has no end
_TOGETHER = 16  # directories of a walk asked for at once
_GONE = STALE | {nfs3.NOENT, nfs3.INVAL}  # INVAL: a link that is none any more
_DIRECTORY_GONE = STALE | {nfs3.NOENT}  # NOENT to a handle: as Ganesha has it
_CANNOT_BE_LOOKED_AT = frozenset({nfs3.ACCES, nfs3.PERM})


@dataclass(slots=True)
class _Listing:
    """One directory on its way."""

    directory: bytes
    handle: bytes | None = None
    cookie: tuple[int, bytes] = (0, bytes(8))
    begun_anew: int = 0  # times
    seen: set[bytes] = field(default_factory=set)  # names, of a directory of more than one part

    @property
    def what(self) -> str:
        return f"listing {text(self.directory) or 'the root'}"

    @property
    def part(self) -> int:
        """Bytes to ask for: more, when the directory changes faster than it can be listed."""
        return min(_PART << self.begun_anew, _LARGEST_PART)

    def advance(self, names: Names) -> None:
        """Raises RemoteFailed for a server that would go on like that for ever."""
        new = {found.name for found in names.found} - self.seen
        if not names.last and (names.cookie == self.cookie or not (new or self.begun_anew)):
            raise RemoteFailed(f"{self.what}: the server repeats itself and comes to no end")
        self.cookie = names.cookie
        if not names.last:
            self.seen |= new


class Listings:
    def __init__(self, session: Session, handles: Handles) -> None:
        self._session = session
        self._handles = handles
        self._plus = True  # False once the server said that it has no READDIRPLUS

    def look_into(self, directory: bytes, deadline: float) -> None:
        """Prove that there is such a directory and that it can be listed."""
        listing = _Listing(directory)
        what = f"listing {self._session.place}"
        self._session.run(what, lambda requests: self._part(requests, listing), deadline=deadline)

    def own(self, requests: Requests) -> Entry:
        """The root itself."""
        try:
            seen = requests.attributes(requests.descend(b""))
        except Failed as error:
            if error.status not in STALE:
                raise
            seen = requests.attributes(requests.descend(b"", stale=True))
        return directory_entry(b"", seen)

    def pages(self, directory: bytes) -> Iterator[Page]:
        yield from self._rest(_Listing(directory))

    def walk(self) -> Iterator[Batch]:
        pending = [_Listing(b"")]
        while pending:
            taken, pending = pending[-_TOGETHER:], pending[:-_TOGETHER]
            batch: Batch = []
            longer: list[_Listing] = []
            for listing, page in zip(taken, self._first(taken), strict=True):
                if page is not None:
                    batch.append(page)
                    pending += _below(page, self._handles)
                if page is None or not page.last:
                    longer.append(listing)
            if batch:
                yield batch
            for listing in longer:
                try:
                    for page in self._rest(listing):
                        pending += _below(page, self._handles)
                        yield [page]
                except GpufsError as error:
                    if not listing.directory:
                        raise
                    self._skip(listing.directory, error)

    def _skip(self, directory: bytes, error: GpufsError) -> None:
        """Let the walk go on without `directory`, unless the whole source is out of reach."""
        if isinstance(error, NotFound | NotADirectory):
            return  # removed or replaced since its parent was listed
        if not isinstance(error, AccessDenied):
            raise error
        _log.warning("left out of the walk: %s", error)

    def _first(self, listings: Sequence[_Listing]) -> list[Page | None]:
        """The first pages, asked for all together; None where it takes more than that."""
        known = [listing for listing in listings if listing.handle is not None and self._plus]

        def attempt(requests: Requests) -> list[tuple[Page, Names] | None]:
            calls = [nfs3.readdirplus(listing.handle or b"", _PART) for listing in known]
            parts: list[tuple[Page, Names] | None] = []
            for listing, answer in zip(known, requests.send(*calls), strict=True):
                try:
                    names = nfs3.names(answer, plus=True)
                except Failed:
                    parts.append(None)  # it is asked for by itself, which tells why
                else:
                    parts.append((self._page(requests, listing, names), names))
            return parts

        if not known:
            return [None] * len(listings)
        pages: dict[bytes, Page] = {}
        for listing, part in zip(known, self._session.run("listing directories", attempt), strict=True):
            if part is not None:
                pages[listing.directory], names = part
                listing.advance(names)
        return [pages.get(listing.directory) for listing in listings]

    def _rest(self, listing: _Listing) -> Iterator[Page]:
        last = False
        while not last:
            page, names = self._session.run(listing.what, lambda requests: self._part(requests, listing))
            listing.advance(names)  # not before all is there: what is repeated would count as seen
            last = page.last
            yield page

    def _part(self, requests: Requests, listing: _Listing) -> tuple[Page, Names]:
        """The next part of the directory."""
        if listing.handle is None:
            listing.handle = requests.descend(listing.directory)
        try:
            return self._ask(requests, listing)
        except Failed as error:
            if error.status not in _DIRECTORY_GONE:
                raise
        listing.handle = requests.descend(listing.directory, stale=True)
        return self._ask(requests, listing)

    def _ask(self, requests: Requests, listing: _Listing) -> tuple[Page, Names]:
        """Begins anew where the server has forgotten how far it was."""
        assert listing.handle is not None
        ask = nfs3.readdirplus if self._plus else nfs3.readdir
        (answer,) = requests.send(ask(listing.handle, listing.part, listing.cookie))
        try:
            names = nfs3.names(answer, plus=self._plus)
        except Failed as error:
            if error.status == nfs3.NOTSUPP and self._plus:
                self._plus = False
            elif error.status == nfs3.BAD_COOKIE and listing.begun_anew < _MOST_BEGINNINGS:
                listing.cookie = (0, bytes(8))
                listing.begun_anew += 1
            else:
                raise
            return self._ask(requests, listing)
        return self._page(requests, listing, names), names

    def _page(self, requests: Requests, listing: _Listing, names: Names) -> Page:
        assert listing.handle is not None
        entries: list[Entry] = []
        hidden: list[Hidden] = []
        prefix = listing.directory + b"/" if listing.directory else b""
        for found in names.found:
            if found.attributes is not None and found.attributes.kind == nfs3.DIRECTORY and found.handle:
                self._handles.put(prefix + found.name, found.handle)
        for entry in self._looked_up(requests, listing.handle, names.found):
            if isinstance(entry, Hidden):
                hidden.append(entry)
            elif entry.name not in listing.seen:
                entries.append(entry)
        own = directory_entry(b"", names.directory) if names.directory is not None else None
        return Page(listing.directory, entries, hidden, names.last, own)

    def _looked_up(
        self, requests: Requests, directory: bytes, found: list[Found]
    ) -> Iterator[Entry | Hidden]:
        links: list[Found] = []
        bare: list[Found] = []
        for one in found:
            reason = unspeakable(one.name)
            if reason is not None:
                yield Hidden(one.name, reason)
            elif one.attributes is None or (one.attributes.kind == nfs3.SYMLINK and not one.handle):
                bare.append(one)
            elif one.attributes.kind == nfs3.SYMLINK:
                links.append(one)
            else:
                yield entry_of(one.name, one.attributes)
        if bare:
            for looked in self._look_up_each(requests, directory, bare):
                if isinstance(looked, Found) and looked.attributes is not None:
                    if looked.attributes.kind == nfs3.SYMLINK:
                        links.append(looked)
                    else:
                        yield entry_of(looked.name, looked.attributes)
                elif isinstance(looked, Hidden):
                    yield looked
        if links:
            answers = requests.send(*(nfs3.readlink(link.handle) for link in links))
            for link, answer in zip(links, answers, strict=True):
                try:
                    target = nfs3.target(answer)
                except Failed as error:
                    if error.status not in _GONE:
                        raise
                else:
                    assert link.attributes is not None
                    yield entry_of(link.name, link.attributes, target)

    def _look_up_each(
        self, requests: Requests, directory: bytes, bare: list[Found]
    ) -> Iterator[Found | Hidden]:
        """Ask for what the listing does not tell of these names; without those that are gone."""
        answers = requests.send(*(nfs3.lookup(directory, one.name) for one in bare))
        for one, answer in zip(bare, answers, strict=True):
            try:
                handle, seen = nfs3.looked_up(answer)
                yield Found(one.name, handle, seen or requests.attributes(handle))
            except Failed as error:
                if error.status in _CANNOT_BE_LOOKED_AT:
                    yield Hidden(one.name, f"cannot be looked at: {error}")
                elif error.status not in _GONE:
                    raise


def _below(page: Page, handles: Handles) -> list[_Listing]:
    prefix = page.directory + b"/" if page.directory else b""
    names = [prefix + entry.name for entry in page.entries if entry.kind is Kind.DIRECTORY]
    return [_Listing(name, handles.get(name)) for name in reversed(names) if len(name) < _LONGEST_PATH]
