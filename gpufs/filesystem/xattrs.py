"""The virtual extended attributes `user.gpufs.*`: what is known of a file, for people and scripts."""

from __future__ import annotations

from collections.abc import Callable

from gpufs.cache import Cache
from gpufs.errors import NoAttribute, NotSupported
from gpufs.filesystem.tree import Tree
from gpufs.index import Inode
from gpufs.source.base import Kind

PREFIX = b"user.gpufs."


class Attributes:
    """`key`: what the source calls the object; `version`: its version; `source`: the dataset;
    `cached`: "yes" when the whole object is on this host, "no" otherwise."""

    def __init__(self, tree: Tree, cache: Cache, key_of: Callable[[bytes], bytes], source_url: str) -> None:
        """`key_of` is Source.key()."""
        self._tree = tree
        self._cache = cache
        self._key_of = key_of
        self._source_url = source_url

    def names(self, number: int) -> list[bytes]:
        inode = self._tree.inode(number)
        names = (b"key", b"version", b"cached", b"source") if inode.kind is Kind.FILE else (b"key", b"source")
        return [PREFIX + name for name in names]

    def get(self, number: int, name: bytes) -> bytes:
        """The value of one attribute. Raises NoAttribute; NotSupported outside the user's name space.

        NotSupported for ACLs and security labels lets `ls -l` stop asking after the first file: it
        would otherwise ask twice for every file, and the kernel remembers no answer.
        """
        if name.startswith(PREFIX):
            value = self._value(self._tree.inode(number), name[len(PREFIX) :])
            if value is not None:
                return value
        if not name.startswith(b"user."):
            raise NotSupported(f"no attributes such as {name!r}")
        raise NoAttribute(f"no attribute {name!r}")

    def _value(self, inode: Inode, name: bytes) -> bytes | None:
        if name == b"key":
            return self._key_of(self._tree.path(inode.number))
        if name == b"source":
            return self._source_url.encode(errors="surrogateescape")
        if inode.kind is Kind.FILE:
            if name == b"version":
                return inode.version.encode(errors="surrogateescape")
            if name == b"cached":
                return b"yes" if not inode.size or self._cache.has_object(inode.digest) else b"no"
        return None
