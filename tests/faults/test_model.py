"""Any sequence of remote changes and local reads, compared with a dictionary of what may be seen."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpufs.control import client, paths
from tests.mounts import Mounted, MountFactory
from tests.servers import S3Endpoint

LARGE = (5 << 20) + 3  # two chunks: the second may be gone while the first is here
SIZES = (0, 1, 1000, 1000, 70_000, LARGE)
PATHS = ("a", "b", "v", "v/1", "v/1/x", "d/a", "d/b", "d/e/c", "w/only")
DIRECTORIES = ("", "d", "d/e", "v", "v/1", "w")
RACES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def above(path: str) -> set[str]:
    """The directories a path lies in; "" is the top."""
    parts = path.split("/")[:-1]
    return {"/".join(parts[:n]) for n in range(len(parts) + 1)}


def children(tree: dict[str, bytes], directory: str) -> set[str]:
    head = directory + "/" if directory else ""
    return {path.removeprefix(head).split("/")[0] for path in tree if path.startswith(head)}


class Remote:
    """The bucket, and what every key has been since the last refresh."""

    def __init__(self, server: S3Endpoint, bucket: str, prefix: str) -> None:
        self._client = server.client()
        self._bucket = bucket
        self._prefix = prefix
        self.now: dict[str, bytes] = {}
        self.past: dict[str, set[bytes | None]] = {}

    def put(self, path: str, data: bytes) -> None:
        for other in [key for key in self.now if key.startswith(path + "/") or path.startswith(key + "/")]:
            self.delete(other)
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + path, Body=data)
        self._note(path)
        self.now[path] = data
        self._note(path)

    def delete(self, path: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + path)
        self._note(path)
        del self.now[path]
        self._note(path)

    def _note(self, path: str) -> None:
        self.past.setdefault(path, set()).add(self.now.get(path))


class Handle:
    """A file that is kept open."""

    def __init__(self, path: str, fd: int, data: bytes) -> None:
        self.path = path
        self.fd = fd
        self.data = data


class World(RuleBasedStateMachine):
    """`seen` is the tree as of the last refresh. Names are held for ever, so that it stays in force, but
    for the directories in `doubted`: there a version turned out to be gone, and they are listed anew, and
    so is what lies above a directory that is found to be gone itself."""

    number = 0

    def __init__(self, mounted: Mounted, server: S3Endpoint, bucket: str) -> None:
        super().__init__()
        World.number += 1
        prefix = f"example{World.number}"
        self.where = next(m for m in paths.all_mounts() if m.mountpoint == str(mounted.path))
        self.top = mounted.path / prefix
        self.prefix = prefix
        self.remote = Remote(server, bucket, prefix + "/")
        self.seen: dict[str, bytes] = {}
        self.doubted: set[str] = set()
        self.whole: set[tuple[str, bytes]] = {("", b"")}  # (path, bytes) that are wholly on this host
        self.handles: list[Handle] = []
        self.made = 0

    def teardown(self) -> None:
        for handle in self.handles:
            os.close(handle.fd)
        for path in list(self.remote.now):
            self.remote.delete(path)

    # -- changes

    @initialize()
    def begin(self) -> None:
        for path in ("keep", "a", "d/a", "d/e/c", "v/1"):
            self.remote.put(path, self.new_data(path, 1000))
        self.refresh(everything=True)

    def new_data(self, path: str, size: int) -> bytes:
        self.made += 1
        return hashlib.shake_128(f"{path} {self.made}".encode()).digest(size)

    @rule(path=st.sampled_from(PATHS), size=st.sampled_from(SIZES))
    def put(self, path: str, size: int) -> None:
        self.remote.put(path, self.new_data(path, size))
        self.spread_doubt()

    @rule(path=st.sampled_from(PATHS))
    def delete(self, path: str) -> None:
        if path in self.remote.now:
            self.remote.delete(path)
            self.spread_doubt()

    @rule(path=st.sampled_from(PATHS))
    def put_back(self, path: str) -> None:
        """The bytes that are seen here: the remote has that version again."""
        if path in self.seen:
            self.remote.put(path, self.seen[path])
            self.spread_doubt()

    @rule(everything=st.booleans())
    def refresh(self, everything: bool) -> None:
        """Then exactly the new state is seen, at once, by a flat listing or by one per directory."""
        client.call(self.where, "refresh", path="" if everything else self.prefix)
        self.seen = dict(self.remote.now)
        self.remote.past.clear()
        self.doubted.clear()
        found = {
            str(path.relative_to(self.top)): path.stat().st_size
            for path in self.top.rglob("*")
            if path.is_file()
        }
        assert found == {path: len(data) for path, data in self.seen.items()}
        for path in PATHS:
            if path not in self.seen and not children(self.seen, path):
                assert not (self.top / path).exists(), f"{path} is still there"

    # -- what may be seen

    def sure(self, path: str) -> bool:
        return not (self.doubted & (above(path) | {path}))

    def doubt(self, path: str) -> None:
        self.doubted.add(path.rpartition("/")[0])
        self.spread_doubt()

    def spread_doubt(self) -> None:
        for directory in list(self.doubted):
            while directory and not children(self.remote.now, directory):
                directory = directory.rpartition("/")[0]
                self.doubted.add(directory)

    def allowed(self, path: str) -> set[bytes | None]:
        now = self.seen.get(path)
        return {now} if self.sure(path) else {now, *self.remote.past.get(path, ()), self.remote.now.get(path)}

    def current(self, path: str, data: bytes) -> bool:
        return (path, data) in self.whole or not data or self.remote.now.get(path) == data

    def open(self, path: str) -> Handle | None:
        """Open, and find out by size and first bytes which version it is; None when there is no file."""
        expected = self.seen.get(path)
        if expected is not None and not self.current(path, expected):
            self.doubt(path)
        possible = self.allowed(path)
        try:
            fd = os.open(self.top / path, os.O_RDONLY)
        except OSError as error:
            assert error.errno in RACES, error
            assert None in possible, f"{path} is gone, though no refresh has said so"
            return None
        try:
            if os.path.isdir(self.top / path):
                assert None in possible
                os.close(fd)
                return None
            head = os.pread(fd, 1000, 0)
        except OSError as error:
            os.close(fd)
            assert error.errno == errno.ESTALE and not self.sure(path), error
            return None
        size = os.fstat(fd).st_size
        fitting = [
            data for data in possible if data is not None and len(data) == size and data[:1000] == head
        ]
        assert len(fitting) == 1, f"{path}: {size} bytes that nobody put there since the last refresh"
        if size < LARGE:
            self.whole.add((path, fitting[0]))
        return Handle(path, fd, fitting[0])

    def read(self, handle: Handle, offset: int, size: int) -> None:
        """What is read belongs to the one version that was opened; ESTALE only for what is not here."""
        sure = self.current(handle.path, handle.data)
        if not sure:
            self.doubt(handle.path)
        try:
            found = os.pread(handle.fd, size, offset)
        except OSError as error:
            assert error.errno == errno.ESTALE and not sure, f"{handle.path}: {error}"
            return
        assert found == handle.data[offset : offset + size], f"{handle.path}: other bytes at {offset}"
        if offset == 0 and size >= len(handle.data):
            self.whole.add((handle.path, handle.data))

    # -- reading

    @rule(path=st.sampled_from(PATHS))
    def read_whole(self, path: str) -> None:
        if handle := self.open(path):
            self.read(handle, 0, LARGE + 1)
            os.close(handle.fd)

    @rule(path=st.sampled_from(PATHS), offset=st.integers(0, LARGE), size=st.integers(1, 100_000))
    def read_range(self, path: str, offset: int, size: int) -> None:
        if handle := self.open(path):
            self.read(handle, offset % (len(handle.data) + 10), size)
            os.close(handle.fd)

    @rule(path=st.sampled_from(PATHS))
    def keep_open(self, path: str) -> None:
        if handle := self.open(path):
            self.handles.append(handle)

    @precondition(lambda self: self.handles)
    @rule(pick=st.randoms(use_true_random=False), offset=st.integers(0, LARGE), size=st.integers(1, 2 << 20))
    def read_on(self, pick: Any, offset: int, size: int) -> None:
        handle = pick.choice(self.handles)
        self.read(handle, offset % (len(handle.data) + 10), size)

    @precondition(lambda self: self.handles)
    @rule()
    def close_first(self) -> None:
        os.close(self.handles.pop(0).fd)

    @rule(directory=st.sampled_from(DIRECTORIES))
    def list_directory(self, directory: str) -> None:
        expected = children(self.seen, directory)
        sure = not (self.doubted & (above(directory + "/x")))
        try:
            found = os.listdir(self.top / directory)
        except OSError as error:
            assert error.errno in RACES
            assert not expected or not sure, f"{directory} is gone, though no refresh has said so"
            return
        assert len(found) == len(set(found))
        known = children({**self.seen, **self.remote.now, **dict.fromkeys(self.remote.past, b"")}, directory)
        assert set(found) == expected if sure else set(found) <= known

    @rule(path=st.sampled_from(PATHS))
    def stat(self, path: str) -> None:
        possible = {len(data) for data in self.allowed(path) if data is not None}
        try:
            found = os.stat(self.top / path)
        except OSError as error:
            assert error.errno in RACES and (None in self.allowed(path))
            return
        if os.path.isfile(self.top / path):
            assert found.st_size in possible


def test_what_is_seen_is_one_version_and_after_a_refresh_the_last(
    moto: S3Endpoint, bucket: Callable[[S3Endpoint], str], mount: MountFactory
) -> None:
    name = bucket(moto)
    moto.put(name, {"root": b"x"})
    mounted = mount(f"s3://{name}", moto).crawled()
    run_state_machine_as_test(
        lambda: World(mounted, moto, name),
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert mounted.count("cache_errors") == 0
