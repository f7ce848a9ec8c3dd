"""NFS: a server that is restarted, stopped or gone, handles that are stale, files that change while read."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpufs.errors import DeadlineExceeded, GpufsError, RemoteFailed, VersionGone
from gpufs.metrics import Metrics
from gpufs.source import Entry, ObjectRef
from gpufs.source.base import Downloads
from gpufs.source.nfs import NfsSettings, NfsSource, parse_place
from gpufs.source.retry import Retry
from tests.servers import NfsServer, free_ports, nfs_server

Open = Callable[..., NfsSource]


@pytest.fixture
def data(nfs: NfsServer) -> Path:
    """A directory of the export."""
    return Path(tempfile.mkdtemp(dir=nfs.root))


@pytest.fixture
def open_nfs() -> Iterator[Open]:
    with ExitStack() as stack:

        def make(server: NfsServer, directory: Path, deadline: float = 60) -> NfsSource:
            url = server.url(str(directory.relative_to(server.root)))
            place = parse_place(url, url.removeprefix("nfs://"))
            metrics = Metrics()
            settings = NfsSettings(mount_port=server.mount_port)
            source = NfsSource(place, settings, Retry(metrics, deadline=deadline), metrics)
            stack.callback(source.close)
            return source

        yield make


def refs_of(source: NfsSource, directory: bytes = b"") -> dict[bytes, ObjectRef]:
    prefix = directory + b"/" if directory else b""
    entries: list[Entry] = [entry for page in source.list(directory) for entry in page.entries]
    return {e.name: ObjectRef(prefix + e.name, e.version, e.size) for e in entries}


def long_ago(*paths: Path) -> None:
    """Wait until nothing of these may be changing within one step of the clock, as the source sees it."""
    newest = max(path.stat().st_ctime for path in paths)
    time.sleep(max(newest + 5.1 - time.time(), 0))


def run_until(downloads: Downloads, count: int) -> dict[object, bytes | GpufsError | None]:
    """What `count` downloads come to."""
    done: dict[object, bytes | GpufsError | None] = {}
    poll = select.poll()
    poll.register(downloads.fileno(), select.POLLIN)
    end = time.monotonic() + 30
    while len(done) < count:
        assert time.monotonic() < end
        timeout = downloads.timeout()
        poll.poll(1000 if timeout is None else timeout * 1000)
        for ticket, result in downloads.turn():
            done[ticket] = bytes(result) if isinstance(result, memoryview) else result
    return done


def start(downloads: Downloads, ref: ObjectRef, ticket: object) -> None:
    """It connects in a thread first."""
    end = time.monotonic() + 30
    while not downloads.start(ref, ticket):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_server_is_killed_and_restarted_under_readers(open_nfs: Open) -> None:
    """They wait, and get their bytes; listings go on too."""
    with nfs_server() as server:
        bodies = {b"%d" % number: os.urandom(300_000 + number) for number in range(20)}
        for name, body in bodies.items():
            (server.root / name.decode()).write_bytes(body)
        source = open_nfs(server, server.root)
        refs = refs_of(source)
        ended = threading.Event()

        def read(seed: int) -> int:
            rounds = 0
            while not ended.is_set() or not rounds:
                for name, ref in refs.items():
                    assert source.read(ref, 0, ref.size) == bodies[name]
                assert refs_of(source) == refs
                rounds += 1
            return rounds

        with ThreadPoolExecutor(8) as pool:
            readers = [pool.submit(read, seed) for seed in range(8)]
            for _ in range(2):
                time.sleep(0.3)
                server.kill()
                server.start()
            time.sleep(0.3)
            ended.set()
            assert all(reader.result(timeout=60) for reader in readers)


def test_downloads_give_up_what_a_restart_took_and_go_on_after_it(open_nfs: Open) -> None:
    with nfs_server() as server:
        (server.root / "d").mkdir()
        bodies = {b"%d" % number: os.urandom(3000 + number) for number in range(50)}
        bodies[b"large"] = os.urandom(3_000_000)  # more than one READ
        for name, body in bodies.items():
            (server.root / "d" / name.decode()).write_bytes(body)
        long_ago(server.root / "d/large")
        source = open_nfs(server, server.root)
        refs = refs_of(source, b"d")
        downloads = source.downloads()
        assert run_all(downloads, refs) == bodies
        server.signal(signal.SIGSTOP)
        for name, ref in refs.items():
            assert downloads.start(ref, name)
        downloads.turn()
        server.kill()
        lost = run_until(downloads, len(refs))
        assert set(lost.values()) == {None}  # read() is what is left
        server.start()
        assert run_all(downloads, refs) == bodies
        name, ref = next(iter(refs.items()))
        assert source.read(ref, 0, ref.size) == bodies[name]


def run_all(downloads: Downloads, refs: dict[bytes, ObjectRef]) -> dict[object, bytes | GpufsError | None]:
    for name, ref in refs.items():
        start(downloads, ref, name)
    return run_until(downloads, len(refs))


def test_downloads_bring_nothing_of_another_version(nfs: NfsServer, data: Path, open_nfs: Open) -> None:
    (data / "replaced").write_bytes(b"old")
    (data / "deleted").write_bytes(b"old")
    (data / "stays").write_bytes(b"old")
    long_ago(data / "stays")
    source = open_nfs(nfs, data)
    refs = refs_of(source)
    (data / "new").write_bytes(b"new")
    (data / "new").rename(data / "replaced")
    (data / "deleted").unlink()
    assert run_all(source.downloads(), refs) == {b"replaced": None, b"deleted": None, b"stays": b"old"}


def test_a_stopped_server_costs_the_deadline_and_no_more(open_nfs: Open) -> None:
    """Reads and listings end with ETIMEDOUT; when the server goes on, so do they, on the same source."""
    with nfs_server() as server:
        (server.root / "f").write_bytes(b"content")
        source = open_nfs(server, server.root, deadline=2)
        ref = refs_of(source)[b"f"]
        server.signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with ThreadPoolExecutor(20) as pool:  # more than there are connections
                reads = [pool.submit(source.read, ref, 0, 7) for _ in range(19)]
                lists = pool.submit(refs_of, source)
            assert {type(call.exception()) for call in (*reads, lists)} == {DeadlineExceeded}
            assert time.monotonic() - begin < 6
        finally:
            server.signal(signal.SIGCONT)
        assert source.read(ref, 0, 7) == b"content"


def test_a_server_that_is_gone_fails_at_the_deadline(nfs: NfsServer) -> None:
    (port,) = free_ports(1)
    for nfs_port, mount_port, says in ((port, nfs.mount_port, ""), (nfs.port, port, "nfs_mount_port")):
        place = parse_place("", f"127.0.0.1:{nfs_port}{nfs.root}")
        metrics = Metrics()
        settings = NfsSettings(mount_port=mount_port)
        source = NfsSource(place, settings, Retry(metrics, deadline=0.5), metrics)
        with pytest.raises(RemoteFailed, match=f"{port}: Connection refused.*{says}"):
            source.stat(b"f")
        source.close()


def test_stale_and_wrong_handles_are_healed(nfs: NfsServer, data: Path, open_nfs: Open) -> None:
    """The names stand for other files and directories; what was looked up before is of no use."""
    (data / "d/e").mkdir(parents=True)
    (data / "d/e/f").write_bytes(b"first")
    source = open_nfs(nfs, data)
    old = refs_of(source, b"d/e")[b"f"]
    assert source.read(old, 0, 5) == b"first"

    (data / "d").rename(data / "moved")  # the handles go on to work, for the old files
    assert source.read(old, 0, 5) == b"first"
    (data / "d/e").mkdir(parents=True)
    (data / "d/e/f").write_bytes(b"second")
    new = refs_of(source, b"d/e")[b"f"]
    assert source.read(new, 0, 6) == b"second"

    shutil.rmtree(data / "moved")  # they are stale now
    shutil.rmtree(data / "d")
    (data / "d/e").mkdir(parents=True)
    (data / "d/e/f").write_bytes(b"third")
    with pytest.raises(VersionGone):
        source.read(old, 0, 5)
    newest = refs_of(source, b"d/e")[b"f"]
    assert source.read(newest, 0, 5) == b"third"


def test_a_data_set_that_was_replaced_as_a_whole_is_found_again(
    nfs: NfsServer, data: Path, open_nfs: Open
) -> None:
    """The handle of the root is stale."""
    root = data / "set"
    root.mkdir()
    (root / "f").write_bytes(b"first")
    source = open_nfs(nfs, root)
    old = refs_of(source)[b"f"]
    shutil.rmtree(root)
    root.mkdir()
    (root / "f").write_bytes(b"second")
    with pytest.raises(VersionGone):
        source.read(old, 0, 5)
    assert source.stat(b"f").size == 6
    shutil.rmtree(root)
    root.mkdir()
    (root / "f").write_bytes(b"the third")
    new = refs_of(source)[b"f"]
    assert source.read(new, 0, 9) == b"the third"


def test_a_file_that_changes_in_place_never_gives_a_mix(nfs: NfsServer, data: Path, open_nfs: Open) -> None:
    """Case 1: bytes of the generation whose version was asked for, or VersionGone."""
    pages = 600  # more than one READ
    writing = threading.Lock()  # a version that is asked for is that of a whole generation
    path = data / "f"
    path.write_bytes(b"\0" * 4096 * pages)
    source = open_nfs(nfs, data)
    ended = threading.Event()

    def change() -> None:
        fd = os.open(path, os.O_WRONLY)
        generation = 0
        while not ended.is_set():
            generation = (generation + 1) % 256
            with writing:
                for page in range(pages):
                    os.pwrite(fd, bytes([generation]) * 4096, page * 4096)
            ended.wait(0.06)
        os.close(fd)

    writer = threading.Thread(target=change)
    writer.start()
    whole = 0
    try:
        end = time.monotonic() + 4
        while time.monotonic() < end or not whole:
            assert time.monotonic() < end + 30
            with writing:
                entry = source.stat(b"f")
            try:
                got = source.read(ObjectRef(b"f", entry.version, entry.size), 0, entry.size)
            except VersionGone:
                continue
            assert len(set(bytes(got))) == 1
            whole += 1
    finally:
        ended.set()
        writer.join()


def test_bytes_behind_four_gigabytes(nfs: NfsServer, data: Path, open_nfs: Open) -> None:
    with open(data / "huge", "wb") as file:
        file.truncate(6 << 30)
        os.pwrite(file.fileno(), b"here", (5 << 30) + 7)
    source = open_nfs(nfs, data)
    ref = refs_of(source)[b"huge"]
    assert ref.size == 6 << 30
    assert source.read(ref, (5 << 30) + 6, 6) == b"\0here\0"
    assert source.read(ref, (6 << 30) - 2, 2) == b"\0\0"


def test_readers_at_once_have_connections_of_their_own(nfs: NfsServer, data: Path, open_nfs: Open) -> None:
    """One connection is as fast as one thread of the server."""
    body = os.urandom(8 << 20)
    (data / "file").write_bytes(body)
    long_ago(data / "file")
    source = open_nfs(nfs, data)
    ref = refs_of(source)[b"file"]
    alone = connections(nfs.port)
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: source.read(ref, 0, ref.size), range(32)):
            assert got == body
    assert connections(nfs.port) >= alone + 3


def connections(port: int) -> int:
    """Established ones of this host to a port of it."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    lines += Path("/proc/net/tcp6").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(field[2].endswith(f":{port:04X}") and field[3] == "01" for field in fields)
