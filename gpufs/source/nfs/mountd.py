"""How to get the handle of an export's root: the port mapper and the MOUNT service (RFC 1833, 1813)."""

from __future__ import annotations

import struct

from .nfs3 import Malformed
from .rpc import Call, opaque

PORTMAP_PORT = 111
NOENT, ACCES, NOTDIR, INVAL, NAMETOOLONG = 2, 13, 20, 22, 63  # what the server says to a path

_MOUNT, _MOUNT_VERSION = 100005, 3
_U32 = struct.Struct(">I")


class NotMounted(Exception):
    """The server gives no handle for this path; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(_MEANING.get(status, f"MOUNT error {status}"))
        self.status = status


def get_mount_port() -> Call:
    return Call(100000, 2, 3, struct.pack(">IIII", _MOUNT, _MOUNT_VERSION, 6, 0))


def port(answer: memoryview) -> int:
    """0 when the service is not registered."""
    return _u32(answer, 0)


def mount(path: bytes) -> Call:
    return Call(_MOUNT, _MOUNT_VERSION, 1, opaque(path))


def root(answer: memoryview) -> bytes:
    """Raises NotMounted."""
    status = _u32(answer, 0)
    if status:
        raise NotMounted(status)
    length = _u32(answer, 4)
    return bytes(answer[8 : 8 + length])


def list_exports() -> Call:
    return Call(_MOUNT, _MOUNT_VERSION, 5, b"")


def exports(answer: memoryview) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while _u32(answer, at):
        at += 4
        path, at = _opaque(answer, at)
        found.append(path)
        while _u32(answer, at):  # the hosts it is for
            _, at = _opaque(answer, at + 4)
        at += 4
    return found


def _opaque(answer: memoryview, at: int) -> tuple[bytes, int]:
    length = _u32(answer, at)
    at += 4
    return bytes(answer[at : at + length]), at + length + -length % 4


def _u32(answer: memoryview, at: int) -> int:
    try:
        return int(_U32.unpack_from(answer, at)[0])
    except struct.error:
        raise Malformed("the server's answer is cut short") from None


_MEANING = {
    NOENT: "no such directory there",
    ACCES: "the server does not export it to this host",
    NOTDIR: "not a directory",
    INVAL: "the server takes it for no path",
    NAMETOOLONG: "name too long",
}
