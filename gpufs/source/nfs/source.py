"""A directory of an NFS server as a source: its own client in user space, without a kernel mount.

The attributes that come with the bytes of every READ decide whether they are of the version that was
asked for. So bytes are as sure as the server's attributes: see docs/semantics.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpufs.errors import NotADirectory, NotFound, RemoteFailed, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import Abilities, Batch, Entry, ObjectRef, Page
from gpufs.source.retry import Retry

from . import nfs3
from .downloads import NfsDownloads
from .entries import changed_ns, entry_of, require_version, text
from .handles import Handles
from .listing import Listings
from .session import STALE, Requests, Session
from .settings import NfsSettings, Place

_CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`
# A file that changed less than this many seconds ago by the server's clock, which may differ from ours
# by as much, might be changing still within one step of that clock.
_FRESH_NS = 5_000_000_000

# What a handle from the cache, or a name, may fail with when the file is another one by now.
_REPLACED = frozenset({nfs3.NOENT, nfs3.NOTDIR, nfs3.ISDIR, nfs3.INVAL, nfs3.NAMETOOLONG, *STALE})


class NfsSource:
    """Thread-safe. Nothing is asked of the server before the first request."""

    def __init__(self, place: Place, settings: NfsSettings, retry: Retry, metrics: Metrics) -> None:
        self._place = place
        self._metrics = metrics
        self._session = Session(place, settings, retry)
        self._handles = Handles()
        self._listings = Listings(self._session, self._handles)
        self._downloads: list[NfsDownloads] = []

    @property
    def id(self) -> str:
        return self._place.id

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=False, pins_versions=True)

    def check(self) -> None:
        try:
            self._listings.look_into(b"", _CHECK_DEADLINE)
        except NotADirectory as error:
            raise NotADirectory(
                f"{self._place} is not a directory; name the directory that holds the files"
            ) from error

    def list(self, directory: bytes) -> Iterator[Page]:
        return self._listings.pages(directory)

    def walk(self) -> Iterator[Batch]:
        return self._listings.walk()

    def stat(self, path: bytes) -> Entry:
        def attempt(requests: Requests) -> Entry:
            if not path:
                return self._listings.own(requests)
            name = path.rpartition(b"/")[2]
            handle, told = requests.find(path)
            seen = told or requests.attributes(handle)
            target = b""
            if seen.kind == nfs3.SYMLINK:
                (answer,) = requests.send(nfs3.readlink(handle))
                target = nfs3.target(answer)
            found = entry_of(name, seen, target)
            if isinstance(found, Entry):
                return found
            raise NotFound(f"{text(path)}: {found.reason}")

        return self._session.run(f"looking at {text(path)}", attempt)

    def key(self, path: bytes) -> bytes:
        base = self._place.path.rstrip(b"/")
        return base + b"/" + path if path else self._place.path

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        if length == 0:
            return memoryview(b"")
        if self._may_be_changing(ref):
            # Its version is known already, so it is at least as old as that: after one step of the
            # server's clock every change gives the file another version.
            root = self._session.known_root
            time.sleep((root.clock_step_ns if root is not None else _FRESH_NS / 100) / 1e9)

        def attempt(requests: Requests) -> memoryview:
            stale = False
            for afresh in (False, True):
                try:
                    handle = self._look_up_file(requests, ref.path, afresh, stale)
                    return _read_range(requests, handle, ref, offset, length)
                except nfs3.Failed as error:
                    if error.status not in _REPLACED:
                        raise
                    stale = error.status in STALE
                    gone = VersionGone(f"{text(ref.path)}: {error}; the version asked for is gone")
                except VersionGone as error:
                    gone = error
                self._handles.drop(ref.path)
            raise gone

        try:
            data = self._session.run(f"reading {text(ref.path)}", attempt, spent=spent, waited=waited)
        except NotFound as error:
            raise VersionGone(f"{text(ref.path)}: its directory is gone") from error
        self._metrics.remote_bytes.add(length)
        return data

    def prepare(self) -> None:
        self._session.prepare(_CHECK_DEADLINE)

    def downloads(self) -> NfsDownloads:
        made = NfsDownloads(self._session, self._handles, self._may_be_changing, self._metrics)
        self._downloads.append(made)
        return made

    def close(self) -> None:
        while self._downloads:
            self._downloads.pop().close()
        self._session.close()

    def _may_be_changing(self, ref: ObjectRef) -> bool:
        return changed_ns(ref.version) > time.time_ns() - _FRESH_NS

    def _look_up_file(self, requests: Requests, path: bytes, afresh: bool, stale: bool) -> bytes:
        handle = None if afresh else self._handles.get(path)
        if handle is None:
            parent, _, name = path.rpartition(b"/")
            directory = None if afresh else self._handles.get(parent)
            if directory is None:
                directory = requests.descend(parent, stale=stale)
                if parent:
                    self._handles.put(parent, directory)
            (answer,) = requests.send(nfs3.lookup(directory, name))
            handle, _ = nfs3.looked_up(answer)
            self._handles.put(path, handle)
        return handle


def _read_range(requests: Requests, handle: bytes, ref: ObjectRef, offset: int, length: int) -> memoryview:
    most = requests.root().read_most
    todo = [(at, min(most, offset + length - at)) for at in range(offset, offset + length, most)]
    if len(todo) == 1:
        data = _read_pieces(requests, handle, ref, todo)[0]
        if len(data) == length:
            return data.toreadonly()
        todo = [(offset + len(data), length - len(data))]
        whole = memoryview(bytearray(length))
        whole[: len(data)] = data
    else:
        whole = memoryview(bytearray(length))
    while todo:
        short: list[tuple[int, int]] = []
        for (at, wanted), data in zip(todo, _read_pieces(requests, handle, ref, todo), strict=True):
            whole[at - offset : at - offset + len(data)] = data
            if len(data) < wanted:  # servers may give less than they are asked for
                short.append((at + len(data), wanted - len(data)))
        todo = short
    return whole.toreadonly()


def _read_pieces(
    requests: Requests, handle: bytes, ref: ObjectRef, todo: list[tuple[int, int]]
) -> list[memoryview]:
    """The bytes of each range, or of its beginning; all of the version that `ref` names."""
    answers = requests.send(*(nfs3.read(handle, at, length) for at, length in todo))
    pieces = [nfs3.piece(answer) for answer in answers]
    told = [after for _, after in pieces if after is not None]
    if len(told) < len(pieces):  # a server need not tell: then it is asked
        told.append(requests.attributes(handle))
    for after in told:
        require_version(after, ref)
    for (at, wanted), (data, _) in zip(todo, pieces, strict=True):
        if not 0 < len(data) <= wanted:
            raise RemoteFailed(f"{text(ref.path)}: {len(data)} of {wanted} bytes came from {at}")
    return [data for data, _ in pieces]
