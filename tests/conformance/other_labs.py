"""Labs of the sources other than directories of this host and S3."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpufs.metrics import Metrics
from gpufs.source import Source, open_source
from gpufs.source.s3.settings import S3Settings
from tests.conformance.labs import FileLab, Files, Lab
from tests.servers import Azurite, FileServer, GsServer

_number = itertools.count()


def _name() -> str:
    return f"t{os.getpid()}-{next(_number)}"


@dataclass
class KeysLab:
    """A store that keeps any key: Google's and Azure's."""

    server: GsServer | Azurite
    scheme: str
    place: str  # bucket or container
    prefix: str = ""
    sources: list[Source] = field(default_factory=list)
    keeps_directories = False

    def _key(self, path: bytes) -> str:
        return f"{self.prefix}/{path.decode()}" if self.prefix else path.decode()

    def fill(self, files: Files) -> None:
        objects: Mapping[str, bytes] = {self._key(path): content for path, content in files.items()}
        if self.prefix and not objects:
            objects = {self.prefix + "/": b""}
        self.server.put(self.place, objects)

    def delete(self, path: bytes) -> None:
        self.server.delete(self.place, self._key(path))

    def holds(self, name: bytes) -> bool:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return False
        # Azurite takes a backslash for a slash, as Azure does, and cannot write control characters as XML
        return self.scheme == "gs" or ("\\" not in text and text.isprintable())

    def source(self, metrics: Metrics | None = None) -> Source:
        return self._open(f"{self.scheme}://{self.place}/{self.prefix}", metrics)

    def missing(self) -> Source:
        return self._open(f"{self.scheme}://{self.place}/no/such/prefix", None)

    def _open(self, url: str, metrics: Metrics | None) -> Source:
        settings = S3Settings(endpoint_url=self.server.url, anonymous=self.scheme == "gs")
        source = open_source(url, settings, metrics or Metrics())
        self.sources.append(source)
        return source

    def close(self) -> None:
        for source in self.sources:
            source.close()


@dataclass
class ServedLab:
    """A directory of this host that a server serves at `url` (with a slash at its end)."""

    inner: FileLab
    url: str
    cannot_hold: Callable[[bytes], bool] = lambda name: False
    sources: list[Source] = field(default_factory=list)
    keeps_directories = True

    def fill(self, files: Files) -> None:
        """What replaces a file is a second younger: these servers tell times in seconds."""
        there = {path: os.stat(self.inner._path(path)).st_mtime for path in files if self._has(path)}
        self.inner.fill(files)
        for path, mtime in there.items():
            os.utime(self.inner._path(path), (mtime + 1, mtime + 1))

    def _has(self, path: bytes) -> bool:
        return os.path.isfile(self.inner._path(path))

    def delete(self, path: bytes) -> None:
        self.inner.delete(path)

    def holds(self, name: bytes) -> bool:
        return not self.cannot_hold(name)

    def source(self, metrics: Metrics | None = None) -> Source:
        return self._open(self.url, metrics)

    def missing(self) -> Source:
        return self._open(self.url + "no such directory/", None)

    def _open(self, url: str, metrics: Metrics | None) -> Source:
        source = open_source(url, S3Settings(), metrics or Metrics())
        self.sources.append(source)
        return source

    def close(self) -> None:
        for source in self.sources:
            source.close()
        shutil.rmtree(self.inner.root, ignore_errors=True)


def _gs(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    server: GsServer = request.getfixturevalue("gs")
    name = _name()
    server.buckets[name] = {}
    return KeysLab(server, "gs", name)


def _az(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    server: Azurite = request.getfixturevalue("azurite")
    patch: Any = request.getfixturevalue("monkeypatch")
    for variable, value in server.env().items():
        patch.setenv(variable, value)
    name = _name()
    server.create(name)
    return KeysLab(server, "az", name, "some/pre fix%20")


def _served(fixture: str, cannot_hold: Callable[[bytes], bool]) -> Callable[..., Lab]:
    def make(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
        server: Any = request.getfixturevalue(fixture)
        name = _name()
        return ServedLab(FileLab(server.root / name), f"{server.url}{name}/", cannot_hold)

    return make


def _by_fsspec(fixture: str, cannot_hold: Callable[[bytes], bool]) -> Callable[..., Lab]:
    def make(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
        server: FileServer = request.getfixturevalue(fixture)
        patch: Any = request.getfixturevalue("monkeypatch")
        for variable, value in server.env.items():
            patch.setenv(variable, value)
        name = _name()
        return ServedLab(FileLab(server.root / name), f"{server.url}/{name}", cannot_hold)

    return make


def _no_utf8(name: bytes) -> bool:
    return b"\xff" in name


def _not_for_windows(name: bytes) -> bool:
    return _no_utf8(name) or bool(set(name) & set(b'\\:*?"<>|')) or min(name) < 32 or name[-1:] in b" ."


# nginx leaves names with a dot at their start out of its index
PLAIN_LABS: dict[str, Callable[[pytest.FixtureRequest, Path], Lab]] = {
    "gs": _gs,
    "az": _az,
    "http-nginx": _served("nginx", lambda name: name.startswith(b".")),
    "http-python": _served("python_web", lambda name: b"\n" in name or b"\xff" in name),
    # a line of the protocol cannot hold what ends one
    "ftp": _by_fsspec("ftp", lambda name: _no_utf8(name) or b"\n" in name),
    "sftp": _by_fsspec("sftp", _no_utf8),
    "smb": _by_fsspec("smb", _not_for_windows),
}
