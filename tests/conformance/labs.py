"""A lab holds a data set in a real backing store and gives the source that serves it.

A new kind of source joins the suite by a lab of its own, added to `lab` in conftest.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpufs.metrics import Metrics
from gpufs.source import Source, open_source
from gpufs.source.nfs import NfsSettings
from gpufs.source.s3.settings import S3Settings
from tests.servers import NfsServer, S3Endpoint

Files = Mapping[bytes, bytes]  # path -> content; a path that ends in `/` is an empty directory


class Lab(Protocol):
    keeps_directories: bool
    """Whether a directory stays when the last file in it is deleted."""

    def fill(self, files: Files) -> None:
        """Put these files into the data set, beside what is there; with {} an empty one comes to be."""

    def delete(self, path: bytes) -> None: ...

    def holds(self, name: bytes) -> bool:
        """Whether the store can keep a file of this name at all."""

    def source(self, metrics: Metrics | None = None) -> Source: ...

    def missing(self) -> Source:
        """A source whose data set does not exist."""

    def close(self) -> None: ...


@dataclass
class FileLab:
    root: Path
    sources: list[Source] = field(default_factory=list)
    keeps_directories = True

    def _path(self, path: bytes) -> bytes:
        return os.fsencode(self.root) + b"/" + path

    def fill(self, files: Files) -> None:
        self.root.mkdir(exist_ok=True)
        for path, content in files.items():
            target = self._path(path)
            if path.endswith(b"/"):
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(content)

    def delete(self, path: bytes) -> None:
        target = self._path(path)
        if os.path.isdir(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)

    def holds(self, name: bytes) -> bool:
        return True

    def source(self, metrics: Metrics | None = None) -> Source:
        return self._open(self.root, metrics)

    def missing(self) -> Source:
        return self._open(self.root / "no such directory", None)

    def _open(self, root: Path, metrics: Metrics | None) -> Source:
        source = open_source(str(root), S3Settings(), metrics or Metrics())
        self.sources.append(source)
        return source

    def close(self) -> None:
        for source in self.sources:
            source.close()


@dataclass
class NfsLab(FileLab):
    """Filled on the server's disk, read through NFS."""

    server: NfsServer = field(kw_only=True)

    def _open(self, root: Path, metrics: Metrics | None) -> Source:
        url = self.server.url(str(root.relative_to(self.server.root)))
        settings = NfsSettings(mount_port=self.server.mount_port)
        source = open_source(url, S3Settings(), metrics or Metrics(), nfs=settings)
        self.sources.append(source)
        return source


@dataclass
class S3Lab:
    """`prefix` is where in the bucket the data set is, without slashes at its ends."""

    server: S3Endpoint
    bucket: str
    prefix: str = ""
    sources: list[Source] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    keeps_directories = False

    def _key(self, path: bytes) -> str:
        return f"{self.prefix}/{path.decode()}" if self.prefix else path.decode()

    def fill(self, files: Files, **extra: Any) -> None:
        objects = {self._key(path): content for path, content in files.items()}
        if self.prefix and not objects:
            objects = {self.prefix + "/": b""}
        if objects:
            self.written.update(objects)
            self.server.put(self.bucket, objects, **extra)

    def delete(self, path: bytes) -> None:
        self.server.client().delete_object(Bucket=self.bucket, Key=self._key(path))

    def holds(self, name: bytes) -> bool:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return False
        # moto answers 404 to a key with a newline; SeaweedFS takes a backslash for a slash.
        return ("\n" if self.server.flat else "\\") not in text

    def source(self, metrics: Metrics | None = None) -> Source:
        return self._open(self.prefix, metrics)

    def missing(self) -> Source:
        return self._open("no/such/prefix", None)

    def _open(self, prefix: str, metrics: Metrics | None) -> Source:
        settings = S3Settings(endpoint_url=self.server.url, region=self.server.region)
        source = open_source(f"s3://{self.bucket}/{prefix}", settings, metrics or Metrics())
        self.sources.append(source)
        return source

    def close(self) -> None:
        for source in self.sources:
            source.close()
        for key in self.written:
            if not key.isprintable():  # the XML of a bulk delete cannot carry it
                self.server.client().delete_object(Bucket=self.bucket, Key=key)
