"""Where an NFS data set is and who asks for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

from gpufs.errors import UsageError

from .rpc import Identity

FORM = "nfs://host[:port]/export[/path]"
NFS_PORT = 2049


@dataclass(frozen=True, slots=True)
class NfsSettings:
    """None means: find out."""

    uid: int | None = None
    gid: int | None = None
    mount_port: int | None = None

    def identity(self) -> Identity:
        """This process's, or the one that was chosen, which has no further groups then."""
        if self.uid is None and self.gid is None:
            return Identity(os.geteuid(), os.getegid(), tuple(os.getgroups()))
        uid = os.geteuid() if self.uid is None else self.uid
        gid = os.getegid() if self.gid is None else self.gid
        return Identity(uid, gid)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of a server, `path` from the server's root."""

    host: str
    port: int
    path: bytes

    def __str__(self) -> str:
        return f"nfs://{self._server()}{self.path.decode('utf-8', 'backslashreplace')}"

    @property
    def id(self) -> str:
        return f"nfs://{self._server()}{quote_from_bytes(self.path)}"

    def _server(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == NFS_PORT else f"{host}:{self.port}"


def parse_place(url: str, rest: str) -> Place:
    """Of what follows `nfs://` in `url`. Raises UsageError."""
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise UsageError(
            "a user does not belong in an nfs:// URL; the options nfs_uid and nfs_gid say who asks"
        )
    host, port = _split(authority)
    if not host or port is None:
        raise UsageError(f"{url}: {authority!r} is no host, or host:port; write {FORM}")
    if not slash:
        raise UsageError(f"{url}: which of the server's directories? write {FORM}")
    parts = [part for part in os.fsencode(path).split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise UsageError(f"{url}: a path on the server cannot contain `..`")
    return Place(host.lower(), port, b"/" + b"/".join(parts))


def _split(authority: str) -> tuple[str, int | None]:
    """Host and port; the port is None when it is none."""
    if authority.startswith("["):
        host, bracket, port = authority[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return "", None
        port = port[1:] if port else str(NFS_PORT)
    else:
        host, colon, port = authority.partition(":")
        port = port if colon else str(NFS_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return host, None
    return host, int(port)
