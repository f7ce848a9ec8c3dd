"""The calls of NFS version 3 (RFC 1813) that reading takes: how they are written, what the answers say."""

from __future__ import annotations

import struct
from typing import NamedTuple

from .rpc import Call, opaque

PROGRAM, VERSION = 100003, 3

REGULAR, DIRECTORY, BLOCK, CHARACTER, SYMLINK, SOCKET, PIPE = range(1, 8)

PERM, NOENT, IO, ACCES, NOTDIR, ISDIR, INVAL, NAMETOOLONG = 1, 2, 5, 13, 20, 21, 22, 63
STALE, BADHANDLE, BAD_COOKIE, NOTSUPP, TOOSMALL, SERVERFAULT, JUKEBOX = (
    70,
    10001,
    10003,
    10004,
    10005,
    10006,
    10008,
)

_ATTRIBUTES = struct.Struct(">5I2Q8x8xQ8x4I")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_FILE = struct.Struct(">QI")  # of a directory's entry: fileid, length of the name
_PIECE = struct.Struct(">III")  # of a READ: count, whether the file ends there, length of the data

_NO_COOKIE = (0, bytes(8))


class Failed(Exception):
    """The server's answer is an error: `status` is one of the numbers above, or another."""

    def __init__(self, status: int) -> None:
        super().__init__(_MEANING.get(status, f"NFS error {status}"))
        self.status = status


class Malformed(Exception):
    """An answer that is none."""


class Attributes(NamedTuple):
    kind: int
    mode: int
    uid: int
    gid: int
    size: int
    fileid: int
    mtime_ns: int
    ctime_ns: int


class Found(NamedTuple):
    """A name in a directory, with what the listing tells of it; not every server tells everything."""

    name: bytes
    handle: bytes
    attributes: Attributes | None


class Names(NamedTuple):
    """A part of a directory. `cookie` is where the next part begins; `last`: there is none."""

    directory: Attributes | None
    found: list[Found]
    cookie: tuple[int, bytes]
    last: bool


class Limits(NamedTuple):
    read: int  # most bytes of one READ
    clock_step_ns: int


def lookup(directory: bytes, name: bytes) -> Call:
    return Call(PROGRAM, VERSION, 3, opaque(directory) + opaque(name))


def getattr(handle: bytes) -> Call:
    return Call(PROGRAM, VERSION, 1, opaque(handle))


def readlink(handle: bytes) -> Call:
    return Call(PROGRAM, VERSION, 5, opaque(handle))


def read(handle: bytes, offset: int, length: int) -> Call:
    return Call(PROGRAM, VERSION, 6, opaque(handle) + struct.pack(">QI", offset, length))


def fsinfo(handle: bytes) -> Call:
    return Call(PROGRAM, VERSION, 19, opaque(handle))


def readdirplus(handle: bytes, size: int, cookie: tuple[int, bytes] = _NO_COOKIE) -> Call:
    """About `size` bytes of names with their attributes and handles."""
    number, verifier = cookie
    place = _U64.pack(number) + verifier
    return Call(PROGRAM, VERSION, 17, opaque(handle) + place + struct.pack(">II", size, size))


def readdir(handle: bytes, size: int, cookie: tuple[int, bytes] = _NO_COOKIE) -> Call:
    """For servers without readdirplus: names alone."""
    number, verifier = cookie
    return Call(PROGRAM, VERSION, 16, opaque(handle) + _U64.pack(number) + verifier + _U32.pack(size))


class _Results:
    """Reads an answer from its beginning. Raises Failed, where the answer is an error, and Malformed."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0
        status = self.u32()
        if status:
            raise Failed(status)

    def u32(self) -> int:
        (value,) = self.unpack(_U32)
        return int(value)

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            values = form.unpack_from(self.data, self.at)
        except struct.error:
            raise Malformed("the server's answer is cut short") from None
        self.at += form.size
        return values

    def take(self, length: int) -> memoryview:
        taken = self.data[self.at : self.at + length]
        if len(taken) != length:
            raise Malformed("the server's answer is cut short")
        self.at += length + -length % 4
        return taken

    def opaque(self) -> bytes:
        return bytes(self.take(self.u32()))

    def attributes(self) -> Attributes:
        kind, mode, _, uid, gid, size, _, fileid, m_s, m_ns, c_s, c_ns = self.unpack(_ATTRIBUTES)
        mtime_ns, ctime_ns = m_s * 1_000_000_000 + m_ns, c_s * 1_000_000_000 + c_ns
        return Attributes(kind, mode & 0o7777, uid, gid, size, fileid, mtime_ns, ctime_ns)

    def optional_attributes(self) -> Attributes | None:
        return self.attributes() if self.u32() else None


def looked_up(answer: memoryview) -> tuple[bytes, Attributes | None]:
    """The handle, and the attributes if the server tells them along."""
    results = _Results(answer)
    handle = results.opaque()
    return handle, results.optional_attributes()


def attributes(answer: memoryview) -> Attributes:
    return _Results(answer).attributes()


def target(answer: memoryview) -> bytes:
    results = _Results(answer)
    results.optional_attributes()
    return results.opaque()


def piece(answer: memoryview) -> tuple[memoryview, Attributes | None]:
    """The bytes, and the file's attributes after they were read if the server tells them along."""
    results = _Results(answer)
    after = results.optional_attributes()
    _, _, length = results.unpack(_PIECE)
    return results.take(length), after


def limits(answer: memoryview) -> Limits:
    results = _Results(answer)
    results.optional_attributes()
    read_most = results.u32()
    results.take(4 * 6)  # preferred sizes, and all about writing and directories
    results.take(8)  # the largest file
    seconds, nanoseconds = results.u32(), results.u32()
    return Limits(read_most, seconds * 1_000_000_000 + nanoseconds)


def names(answer: memoryview, *, plus: bool) -> Names:
    results = _Results(answer)
    directory = results.optional_attributes()
    verifier = bytes(results.take(8))
    found: list[Found] = []
    number = 0
    while results.u32():
        _, length = results.unpack(_FILE)
        name = bytes(results.take(length))
        (number,) = results.unpack(_U64)
        seen = results.optional_attributes() if plus else None
        handle = results.opaque() if plus and results.u32() else b""
        if name not in (b".", b".."):
            found.append(Found(name, handle, seen))
    return Names(directory, found, (number, verifier), bool(results.u32()))


_MEANING = {
    PERM: "not permitted",
    NOENT: "no such file or directory",
    IO: "the server cannot read it (NFS3ERR_IO)",
    ACCES: "permission denied",
    NOTDIR: "not a directory",
    ISDIR: "is a directory",
    INVAL: "the server takes the request for invalid",
    NAMETOOLONG: "name too long",
    STALE: "stale file handle",
    BADHANDLE: "bad file handle",
    BAD_COOKIE: "the directory changed while it was listed",
    NOTSUPP: "not supported by the server",
    TOOSMALL: "too small",
    SERVERFAULT: "the server failed (NFS3ERR_SERVERFAULT)",
    JUKEBOX: "the server fetches it from a slow medium (NFS3ERR_JUKEBOX)",
}
