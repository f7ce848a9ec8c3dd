"""A tree that fsspec can list and read, as a source.

No server of this kind lets a read name the version it wants. So the file is looked at before and after, and
compared with the listing by what the protocol tells: the strongest of a checksum or ETag, and file number,
time and size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from gpufs.errors import GpufsError, NotADirectory, NotFound, UsageError, VersionGone
from gpufs.metrics import Metrics
from gpufs.source import netrc
from gpufs.source.base import Abilities, Batch, Entry, Hidden, Kind, ObjectRef, Page
from gpufs.source.directories import walk_by_lists
from gpufs.source.flat.keys import fault_of
from gpufs.source.retry import Load, Retry, Transient

from .adapters import Adapter, Info, adapter_for
from .clients import Clients
from .translate import translate

T = TypeVar("T")

_PAGE_SIZE = 1000
_CHECK_DEADLINE = 15.0  # seconds: a person waits for `gpufs mount`
_PACKAGES = {  # of PyPI, besides fsspec
    "ftp": "",
    "hdfs": " pyarrow, and Java and Hadoop on this host (JAVA_HOME, HADOOP_HOME, CLASSPATH)",
    "hf": " huggingface_hub",
    "sftp": " paramiko",
    "smb": " smbprotocol",
    "ssh": " paramiko",
    "webhdfs": " requests",
}
_LIBRARIES = ("libjvm", "libhdfs")  # what pyarrow names in an error when Java or Hadoop is not there
# What tells versions apart by itself, in the order of trust; then what does together with time and size.
_TAGS = ("etag", "ETag", "md5", "sha256", "checksum", "blob_id", "generation", "version_id", "content_hash")
_NUMBERS = ("ino", "fileid", "unique", "change")
_TIMES = (
    "mtime",
    "modify",
    "modified",
    "last_modified",
    "LastModified",
    "updated",
    "modificationTime",
    "date",
)


class FsspecSource:
    """Implements Source. Nothing is imported or opened before the first request."""

    def __init__(self, protocol: str, rest: str, metrics: Metrics, load: Load | None = None) -> None:
        self._protocol = protocol
        self._url = f"{protocol}://{rest.rstrip('/')}"
        self._metrics = metrics
        self._retry = Retry(metrics, load)
        self._lock = threading.Lock()
        self._opened: tuple[Clients, str] | None = None

    @property
    def id(self) -> str:
        return self._url

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=False, pins_versions=False)

    def check(self) -> None:
        for _ in self._list(b"", _CHECK_DEADLINE):
            pass

    def list(self, directory: bytes) -> Iterator[Page]:
        return self._list(directory, None)

    def walk(self) -> Iterator[Batch]:
        return walk_by_lists(self)

    def stat(self, path: bytes) -> Entry:
        if not path:
            return Entry(b"", Kind.DIRECTORY)
        found = self._look(path)
        if isinstance(found, Entry):
            return found
        raise NotFound(f"{self._name(path)}: {found.reason}")

    def key(self, path: bytes) -> bytes:
        return self._name(path).encode("utf-8", "surrogateescape")

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        if length == 0:
            return memoryview(b"")
        what = self._name(ref.path)

        def work(adapter: Adapter, path: str) -> memoryview:
            self._require(adapter, path, ref)
            data = adapter.read(path, offset, length)
            self._require(adapter, path, ref)
            if len(data) != length:
                raise Transient(f"{len(data)} bytes came instead of {length}")
            return memoryview(data)

        try:
            data = self._run(f"reading {what}", ref.path, work, spent=spent, waited=waited)
        except (NotFound, NotADirectory) as error:
            raise VersionGone(f"{what} was deleted") from error
        self._metrics.remote_bytes.add(length)
        return data

    def prepare(self) -> None:
        pass

    def downloads(self) -> None:
        return None

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _list(self, directory: bytes, deadline: float | None) -> Iterator[Page]:
        infos = self._run(
            f"listing {self._name(directory)}",
            directory,
            lambda adapter, path: (adapter.list(path), path),
            deadline,
        )
        children, path = infos
        if len(children) == 1 and children[0]["name"].rstrip("/") == path and directory:
            raise NotADirectory(f"{self._name(directory)} is no directory")
        if not children and directory and self.stat(directory).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{self._name(directory)} is no directory")
        found = [one for info in children if (one := _entry(info)) is not None]
        for start in range(0, len(found) or 1, _PAGE_SIZE):
            part = found[start : start + _PAGE_SIZE]
            entries = [one for one in part if isinstance(one, Entry)]
            hidden = [one for one in part if isinstance(one, Hidden)]
            yield Page(directory, entries, hidden, last=start + _PAGE_SIZE >= len(found))

    def _look(self, path: bytes) -> Entry | Hidden:
        what = self._name(path)
        info = self._run(f"looking at {what}", path, lambda adapter, place: adapter.info(place))
        name = path.rpartition(b"/")[2]
        return _entry(info | {"name": _text(name)}) or Hidden(name, "it has no name")

    def _require(self, adapter: Adapter, path: str, ref: ObjectRef) -> None:
        found = _entry(adapter.info(path))
        if not isinstance(found, Entry) or (found.version, found.size) != (ref.version, ref.size):
            raise VersionGone(f"{self._name(ref.path)} was changed or replaced since it was listed")

    def _run(
        self,
        what: str,
        path: bytes,
        work: Callable[[Adapter, str], T],
        deadline: float | None = None,
        spent: float = 0.0,
        waited: float = 0.0,
    ) -> T:
        def attempt(left: float) -> T:
            clients, root = self._open()
            place = f"{root}/{_text(path)}" if path else root or "/"
            try:
                return clients.run(lambda adapter: work(adapter, place), left)
            except (NotFound, NotADirectory, UsageError, VersionGone):
                raise
            except GpufsError as error:
                raise type(error)(f"{self._name(path)}: {error}") from error

        return self._retry.run(what, attempt, deadline=deadline, spent=spent, waited=waited)

    def _name(self, path: bytes) -> str:
        return f"{self._url}/{_text(path)}" if path else self._url

    # -- connection

    def _open(self) -> tuple[Clients, str]:
        with self._lock:
            if self._opened is None:
                make, options = self._filesystem()
                kind = adapter_for(self._protocol)

                def connect() -> Adapter:
                    try:
                        return kind(make, options)
                    except ImportError as error:
                        raise self._missing(error) from error
                    except OSError as error:
                        if any(library in str(error) for library in _LIBRARIES):
                            raise self._missing(error) from error
                        raise

                clients = Clients(connect, translate)
                root = str(make._strip_protocol(self._url)).rstrip("/")
                self._opened = clients, root
            return self._opened

    def _missing(self, error: Exception) -> UsageError:
        more = _PACKAGES.get(self._protocol)
        hint = f"pip install 'gpufs[fsspec]'{more}" if more is not None else str(error)
        return UsageError(f"{self._protocol}: needs a package that is missing here: {hint}")

    def _filesystem(self) -> tuple[Any, Mapping[str, Any]]:
        """The class of the protocol, and its options from the URL, fsspec's configuration and ~/.netrc."""
        try:
            from fsspec import get_filesystem_class
            from fsspec.config import conf, set_conf_env

            make = get_filesystem_class(self._protocol)
        except (ImportError, ValueError) as error:
            raise self._missing(error) from error
        options = {name: value for name, value in make._get_kwargs_from_urls(self._url).items() if value}
        set_conf_env(conf)  # it was read when fsspec was imported
        options = dict(conf.get(self._protocol, {})) | options
        host = options.get("host")
        if host and not options.get("password"):
            found = netrc.find(str(host), str(options.get("username", "")))
            if found is not None:
                options |= {"username": found[0], "password": found[1]}
        return make, options


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _entry(info: Info) -> Entry | Hidden | None:
    name = str(info["name"]).rstrip("/").rpartition("/")[2].encode("utf-8", "surrogateescape")
    if not name:
        return None
    reason = fault_of(name)
    if reason is not None:
        return Hidden(name, reason)
    kind, size = info.get("type"), info.get("size")
    if kind == "directory":
        return Entry(name, Kind.DIRECTORY)
    if kind != "file":
        return Hidden(name, "not a file" if kind in (None, "other") else str(kind))
    if not isinstance(size, int) or size < 0:
        return Hidden(name, "the server does not tell its size")
    return Entry(name, Kind.FILE, size, _mtime_ns(info), _version(info, size))


def _version(info: Info, size: int) -> str:
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), None)
    if tag is not None:
        return tag
    time = next((str(info[name]) for name in _TIMES if info.get(name)), "")
    numbers = [str(info[name]) for name in _NUMBERS if info.get(name)]
    return " ".join([*numbers, time, f"size {size}"]).strip()


def _mtime_ns(info: Info) -> int:
    value = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(value, int | float):
        seconds = value / 1000 if value > 1e11 else value  # webhdfs: milliseconds
        return int(seconds * 1_000_000) * 1000
    if isinstance(value, str):
        form = "%Y%m%d%H%M%S.%f" if "." in value else "%Y%m%d%H%M%S"
        try:
            value = (
                datetime.strptime(value, form).replace(tzinfo=UTC)
                if value[:8].isdecimal()
                else datetime.fromisoformat(value)
            )
        except ValueError:  # the `Nov 30 23:33` of a server without MLSD
            return 0
    if isinstance(value, datetime):
        return int(value.timestamp()) * 1_000_000_000 + value.microsecond * 1000
    return 0
