"""The values of the index and how an inode is laid out in bytes.

Those made for every request are named tuples: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from gpufs.source.base import Kind

ROOT = 1
DIGEST_SIZE = 16
NAME_MAX = 255


class Inode(NamedTuple):
    """One immutable (object, version), or a directory.

    `digest` names the contents in the cache: 16 bytes for a file, empty for anything else. `mode`,
    `uid` and `gid` are None where the source has no such thing. `target` is a symbolic link's text.
    """

    number: int
    parent: int
    name: bytes
    kind: Kind
    size: int
    mtime_ns: int
    version: str
    digest: bytes
    mode: int | None
    uid: int | None
    gid: int | None
    target: bytes


class Listed(NamedTuple):
    """When a directory's last complete listing started (time.time_ns), 0 when it must be listed again.

    `complete` tells whether the names known are those of a complete listing, be it an old one: they
    may be served while the source is down. It stays true when the directory expires.
    """

    at_ns: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """What the names of the tree add up to.

    `files` counts symbolic links too, `directories` leaves the root out, `bytes` is the size of the
    files, `hidden` the number of objects that no path can name.
    """

    files: int
    directories: int
    bytes: int
    hidden: int


class Change(NamedTuple):
    """A directory entry the kernel may hold that is no longer right.

    With an empty name: not the entries but the attributes of the directory `parent` itself.
    """

    parent: int
    name: bytes


# flags, length of the name, parent, size, mtime_ns; then mode, uid, gid and the length of the target
# where the flags say so; then name, target, version, and for files the digest.
_HEAD = struct.Struct("<BBQQq")
_MODE = struct.Struct("<H")
_OWNER = struct.Struct("<I")
_TARGET = struct.Struct("<H")
_SIZE = struct.Struct("<Q")

_KIND_MASK = 0x03
_HEX_VERSION = 0x04
_HAS_MODE = 0x08
_HAS_UID = 0x10
_HAS_GID = 0x20
_HEX_DIGITS = 32
_KINDS = (Kind.FILE, Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK)


def digest_of(source_id: str, path: bytes, version: str, size: int) -> bytes:
    """The name of one version's contents in the cache: 16 bytes."""
    return digest_under(digest_head(source_id), path, version, size)


def digest_head(source_id: str, directory: bytes = b"") -> bytes:
    """What the digests of all files in one directory start from."""
    head = source_id.encode() + b"\0"
    return head + directory + b"/" if directory else head


def digest_under(head: bytes, name: bytes, version: str, size: int) -> bytes:
    text = version.encode("utf-8", "surrogateescape")
    return xxhash.xxh3_128_digest(b"".join((head, name, b"\0", text, b"\0", _SIZE.pack(size))))


def kind_of(data: bytes) -> Kind:
    """The kind of an encoded inode, without decoding the rest."""
    return _KINDS[data[0] & _KIND_MASK]


def size_of(data: bytes) -> int:
    """The size of an encoded inode, without decoding the rest."""
    size: int = _HEAD.unpack_from(data)[3]
    return size


def contents_of(data: bytes) -> tuple[bytes, int]:
    """Digest and size of an encoded inode, without decoding the rest: no digest when it is not a file."""
    flags, _, _, size, _ = _HEAD.unpack_from(data)
    return (data[-DIGEST_SIZE:] if _KINDS[flags & _KIND_MASK] is Kind.FILE else b""), size


def mtime_of(data: bytes) -> int:
    """The mtime_ns of an encoded inode, without decoding the rest."""
    mtime_ns: int = _HEAD.unpack_from(data)[4]
    return mtime_ns


def place_of(data: bytes) -> tuple[int, bytes]:
    """Parent and name of an encoded inode, without decoding the rest."""
    flags, length, parent, _, _ = _HEAD.unpack_from(data)
    at = _HEAD.size
    if flags & _HAS_MODE:
        at += _MODE.size
    if flags & _HAS_UID:
        at += _OWNER.size
    if flags & _HAS_GID:
        at += _OWNER.size
    if flags & _KIND_MASK == Kind.SYMLINK:
        at += _TARGET.size
    return parent, data[at : at + length]


def body(
    parent: int,
    name: bytes,
    kind: Kind,
    size: int,
    mtime_ns: int,
    version: str,
    mode: int | None,
    uid: int | None,
    gid: int | None,
    target: bytes,
) -> bytes:
    """An encoded inode without its digest: two bodies are equal when nothing about an entry changed."""
    flags = int(kind)
    owner = b""
    if mode is not None:
        flags |= _HAS_MODE
        owner += _MODE.pack(mode)
    if uid is not None:
        flags |= _HAS_UID
        owner += _OWNER.pack(uid)
    if gid is not None:
        flags |= _HAS_GID
        owner += _OWNER.pack(gid)
    if kind is Kind.SYMLINK:
        owner += _TARGET.pack(len(target))
    raw = _hex_bytes(version)
    if raw is None:
        text = version.encode("utf-8", "surrogateescape")
    else:
        flags |= _HEX_VERSION
        text = raw + version[_HEX_DIGITS:].encode("utf-8", "surrogateescape")
    return b"".join((_HEAD.pack(flags, len(name), parent, size, mtime_ns), owner, name, target, text))


def encode(inode: Inode) -> bytes:
    """`inode` in the form it is stored under its number."""
    expected = DIGEST_SIZE if inode.kind is Kind.FILE else 0
    if len(inode.digest) != expected or len(inode.name) > NAME_MAX:
        raise ValueError(f"not a valid inode: {inode}")
    if inode.target and inode.kind is not Kind.SYMLINK:
        raise ValueError(f"only a symbolic link has a target: {inode}")
    return (
        body(
            inode.parent,
            inode.name,
            inode.kind,
            inode.size,
            inode.mtime_ns,
            inode.version,
            inode.mode,
            inode.uid,
            inode.gid,
            inode.target,
        )
        + inode.digest
    )


def decode(number: int, data: bytes) -> Inode:
    """The inode stored as `data` under `number`."""
    flags, name_length, parent, size, mtime_ns = _HEAD.unpack_from(data)
    kind = _KINDS[flags & _KIND_MASK]
    at = _HEAD.size
    mode = uid = gid = None
    if flags & _HAS_MODE:
        mode = _MODE.unpack_from(data, at)[0]
        at += _MODE.size
    if flags & _HAS_UID:
        uid = _OWNER.unpack_from(data, at)[0]
        at += _OWNER.size
    if flags & _HAS_GID:
        gid = _OWNER.unpack_from(data, at)[0]
        at += _OWNER.size
    target_length = 0
    if kind is Kind.SYMLINK:
        target_length = _TARGET.unpack_from(data, at)[0]
        at += _TARGET.size
    after_name = at + name_length
    after_target = after_name + target_length
    end = len(data) - DIGEST_SIZE if kind is Kind.FILE else len(data)
    version = data[after_target:end]
    if flags & _HEX_VERSION:
        text = version[:DIGEST_SIZE].hex()
        if len(version) > DIGEST_SIZE:
            text += version[DIGEST_SIZE:].decode("utf-8", "surrogateescape")
    else:
        text = version.decode("utf-8", "surrogateescape")
    return Inode(
        number,
        parent,
        data[at:after_name],
        kind,
        size,
        mtime_ns,
        text,
        data[end:],
        mode,
        uid,
        gid,
        data[after_name:after_target],
    )


def _hex_bytes(version: str) -> bytes | None:
    """The 16 bytes an MD5-like ETag starts with, when it does."""
    if len(version) < _HEX_DIGITS:
        return None
    digits = version[:_HEX_DIGITS]
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    # fromhex() also takes upper case and blanks, which would not come back as they were.
    return raw if raw.hex() == digits else None
