"""Where the files of an inventory are read from: this host, or a bucket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from gpufs.errors import GpufsError, MountFailed
from gpufs.source.base import Entry, ObjectRef, Source

_PIECE = 8 << 20
_LAYOUT_DEPTH = 16  # directories above a manifest in which its data files are looked for


class Files(Protocol):
    def open(self, name: str) -> BinaryIO:
        """A file of the inventory, by the name that its manifest has for it, from its start."""

    def shown(self, name: str) -> str:
        """The same file, for people."""

    def modified_ns(self) -> int:
        """When the file that was named was last modified."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """`path` is the file that was named. Data files of a manifest lie beside it, or as in the bucket."""

    path: Path

    def open(self, name: str) -> BinaryIO:
        path = self._find(name)
        try:
            return path.open("rb")
        except OSError as error:
            raise MountFailed(f"index_from: {path}: {error.strerror}") from error

    def shown(self, name: str) -> str:
        return str(self._find(name))

    def modified_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError as error:
            raise MountFailed(f"index_from: {self.path}: {error.strerror}") from error

    def _find(self, name: str) -> Path:
        if not name:
            return self.path
        here = self.path.parent
        places = [here / os.path.basename(name), here.parent / "data" / os.path.basename(name)]
        places += [above / name.lstrip("/") for above in (here, *list(here.parents)[:_LAYOUT_DEPTH])]
        return next((place for place in places if place.is_file()), places[0])


class RemoteFiles:
    """The bucket of the file that was named; files are brought to `scratch`, without a name there."""

    def __init__(self, url: str, open_bucket: Callable[[str], Source], scratch: Path) -> None:
        scheme, _, rest = url.partition("://")
        bucket, _, self._key = rest.partition("/")
        self._bucket = f"{scheme}://{bucket}"
        self._source = open_bucket(self._bucket)
        self._scratch = scratch

    def open(self, name: str) -> BinaryIO:
        key = os.fsencode(name or self._key)
        entry = self._stat(key)
        ref = ObjectRef(key, entry.version, entry.size)
        file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115  # the caller's to close
        try:
            for at in range(0, entry.size, _PIECE):
                file.write(self._source.read(ref, at, min(_PIECE, entry.size - at)))
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    def shown(self, name: str) -> str:
        return f"{self._bucket}/{name or self._key}"

    def modified_ns(self) -> int:
        return self._stat(os.fsencode(self._key)).mtime_ns

    def _stat(self, key: bytes) -> Entry:
        try:
            return self._source.stat(key)
        except GpufsError as error:
            raise MountFailed(f"index_from: {error}") from error
