"""What a source is: the protocol every kind of remote dataset implements, and its values.

A source is synchronous and thread-safe: it is called from worker threads, many at once. Paths are
bytes relative to the mounted root, components joined by `/`, never starting or ending with one;
`b""` is the root.

Values that come by the million are named tuples: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gpufs.errors import GpufsError


class Kind(IntEnum):
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Entry(NamedTuple):
    """One name in a directory, as a listing gives it.

    `version` tells two contents of the same path apart, together with `size` (S3: the ETag without
    quotes; file systems: fileid, mtime and ctime); it is empty for directories. `mode` holds
    permission bits only. `mode`, `uid` and `gid` are None where the source has no such thing.
    `target` is the text of a symbolic link. `mtime_ns` is 0 where the source does not know.
    """

    name: bytes
    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    version: str = ""
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Something of the source that no path can name, left out of the tree.

    `name` is its place in the directory it was found in, as the source spells it (for S3 the rest
    of the key up to and including the next `/`), `reason` a few words for people, `count` how many
    objects are known to be behind it (1 when unknown).
    """

    name: bytes
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Page:
    """A part of one directory's listing. `last` is true on the directory's final page.

    A flat store can have a file and a directory of one name (keys `out` and `out/x`): then both are
    entries, perhaps of different pages, and the index decides. Otherwise a name comes once.
    `own` are the attributes of the directory itself, on one of its pages, where the source has such.
    `asked_ns` is a time.time_ns() before which the source was asked neither for this page nor for a later one
    of the directory; 0 for the time at which the page was waited for.
    """

    directory: bytes
    entries: list[Entry]
    hidden: list[Hidden]
    last: bool
    own: Entry | None = None
    asked_ns: int = 0


class ObjectRef(NamedTuple):
    """One immutable version of one object."""

    path: bytes
    version: str
    size: int


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a source can promise. `flat_listing`: walk() costs about one request per 1,000 names, not
    one per directory. `pins_versions`: a read of a replaced version fails and never gives other bytes."""

    flat_listing: bool
    pins_versions: bool


class Downloads(Protocol):
    """Whole objects, many at once, by one thread that waits for all of them together.

    For small objects, where a thread for each costs more than the object. What neither succeeds nor is
    refused for good is to be read() then.
    """

    def fileno(self) -> int:
        """Readable when turn() has something to do."""

    def timeout(self) -> float | None:
        """Seconds after which turn() has something to do in any case."""

    def start(self, ref: ObjectRef, ticket: Any) -> bool:
        """Begin to fetch; False when this object must be read()."""

    def turn(self) -> Sequence[tuple[Any, memoryview | GpufsError | None]]:
        """The tickets of those that have come, with all their bytes, or why they cannot be had, or None.

        Never waits.
        """

    def intact(self, ref: ObjectRef, data: memoryview) -> bool:
        """Whether the bytes match the source's checksum, where there is one; in any thread."""


# Source.list hides the builtin inside the class.
Batch = list[Page]


class Source(Protocol):
    @property
    def id(self) -> str:
        """Identity of the dataset: equal for two mounts of the same data, free of secrets."""

    @property
    def abilities(self) -> Abilities: ...

    def check(self) -> None:
        """Prove that the dataset exists and can be listed; for `gpufs mount` to fail early.

        Raises NotFound, AccessDenied, RemoteFailed or DeadlineExceeded with a message for people.
        """

    def list(self, directory: bytes) -> Iterator[Page]:
        """The direct children of `directory`, in pages; at least one page, exactly one `last`.

        Raises NotFound when there is no such directory, NotADirectory when it is a file.
        """

    def walk(self) -> Iterator[Batch]:
        """The whole tree, in batches of pages, a batch being what one request brought.

        A directory stands in a page of its parent before its own first page; pages of several
        directories may interleave; every directory gets exactly one `last` page.
        """

    def stat(self, path: bytes) -> Entry:
        """The entry at `path` as it is now. Raises NotFound."""

    def key(self, path: bytes) -> bytes:
        """What the source itself calls `path`, for people: an object's full key, a file's absolute path."""

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        """Exactly `length` bytes of that version from `offset` (0 <= offset, offset+length <= size).

        Checked against the source's checksum where the whole object is read and there is one.
        Raises VersionGone when the version is no longer there, ObjectArchived, AccessDenied,
        RemoteFailed, DeadlineExceeded. Never returns fewer, more or other bytes. `spent`: seconds that
        a failed attempt by other means took, as a part of the deadline. `waited`: too, those that passed
        before anything was sent.
        """

    def prepare(self) -> None:
        """Do in advance what the first read would have to wait for. What fails is left to that."""

    def downloads(self) -> Downloads | None:
        """The way to many whole objects at once, where there is a better one than read()."""

    def close(self) -> None: ...


class Origin(NamedTuple):
    """Where credentials were found, and until when they are good: a time.time(), None where none is known."""

    where: str
    until: float | None


@runtime_checkable
class OnTheWeb(Protocol):
    """A source behind HTTP, for those who look for what is wrong with the way to it."""

    def address(self) -> tuple[str, str | None]:
        """A URL of the server that anybody may ask for, whatever the answer; the certificates to trust
        (None: the system's). Raises UsageError."""

    def origin(self) -> Origin | None:
        """Of the credentials that are in use now; None when requests are not signed.

        Raises AccessDenied when there are none, Transient when whoever issues them failed.
        """
