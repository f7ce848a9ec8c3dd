"""What the server tells of a name, as an entry of a listing; and what makes a version."""

from __future__ import annotations

from gpufs.errors import VersionGone
from gpufs.source.base import Entry, Hidden, Kind, ObjectRef

from . import nfs3
from .nfs3 import Attributes

_SPECIAL = {
    nfs3.PIPE: "named pipe",
    nfs3.SOCKET: "socket",
    nfs3.CHARACTER: "character device",
    nfs3.BLOCK: "block device",
}
_LONGEST_NAME = 255


def unspeakable(name: bytes) -> str | None:
    """Why no path can have this name; None when one can."""
    if not name or b"/" in name or b"\0" in name:
        return "no path can name it"
    return f"the name has more than {_LONGEST_NAME} bytes" if len(name) > _LONGEST_NAME else None


def entry_of(name: bytes, seen: Attributes, target: bytes = b"") -> Entry | Hidden:
    if seen.kind == nfs3.DIRECTORY:
        return directory_entry(name, seen)
    if seen.kind == nfs3.REGULAR:
        kind, size = Kind.FILE, seen.size
    elif seen.kind == nfs3.SYMLINK:
        kind, size = Kind.SYMLINK, len(target)
    else:
        return Hidden(name, _SPECIAL.get(seen.kind, "not a file"))
    return Entry(name, kind, size, seen.mtime_ns, version_of(seen), seen.mode, seen.uid, seen.gid, target)


def directory_entry(name: bytes, seen: Attributes) -> Entry:
    return Entry(name, Kind.DIRECTORY, mtime_ns=seen.mtime_ns, mode=seen.mode, uid=seen.uid, gid=seen.gid)


def version_of(seen: Attributes) -> str:
    return f"{seen.fileid}-{seen.mtime_ns}-{seen.ctime_ns}"


def changed_ns(version: str) -> int:
    """When, by the server's clock, the file of this version last changed."""
    return int(version.rpartition("-")[2])


def is_version(seen: Attributes, ref: ObjectRef) -> bool:
    return seen.kind == nfs3.REGULAR and seen.size == ref.size and version_of(seen) == ref.version


def require_version(seen: Attributes, ref: ObjectRef) -> None:
    if not is_version(seen, ref):
        raise VersionGone(f"{text(ref.path)} was changed or replaced since it was listed")


def text(path: bytes) -> str:
    """For messages: never fails, never carries surrogates."""
    return path.decode("utf-8", "backslashreplace")
