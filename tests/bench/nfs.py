"""NFS: cold small files with 8 readers beside nfs-rs alone (target: 70%), a large file, a listing of 20,000.

The server (NFS-Ganesha) shares the processors. nfs-rs brings the files into memory, by its own threads and
without looking at versions; gpufs brings them into its cache and hands them to programs through the kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from tests.bench.lab import prepared, table
from tests.mounts import Mounted
from tests.servers import NfsServer, nfs_server

ROUNDS = 3
READERS = 8
FILES, DIRECTORIES, SIZE = 3000, 30, 40_000
NAMES = 20_000
LARGE = 256 << 20
PIECE = 4 << 20


def run() -> None:
    with nfs_server() as server:
        paths = _fill(server.root)
        time.sleep(5.5)  # what has just changed is read with more care
        with prepared(server.url(), **server.options, cache_size="80%", min_free="0") as mounted:
            mounted.mount()
            names = _seconds(lambda: len(os.listdir(mounted.path / "many")))
            rounds = [(_alone(server, paths), _mounted(mounted, paths)) for _ in range(ROUNDS)]
            large = LARGE / _seconds(lambda: _read(mounted.path / "large")) / 1e6
        alone_names, alone_large = _alone_names(server), _alone_large(server)
    alone, ours = (FILES / median(each) for each in zip(*rounds, strict=True))
    share = median(theirs / own for theirs, own in rounds)
    table(
        [
            (
                f"{FILES:,} files of {SIZE / 1000:.0f} KB, {READERS} readers, cold, gpufs",
                f"{ours:,.0f} files/s",
            ),
            ("the same files, nfs-rs alone", f"{alone:,.0f} files/s"),
            ("", f"{100 * share:.0f}% of the speed of nfs-rs alone"),
            (f"one file of {LARGE >> 20} MiB from its beginning, cold, gpufs", f"{large:,.0f} MB/s"),
            ("the same file, nfs-rs alone", f"{alone_large:,.0f} MB/s"),
            (f"first listing of {NAMES:,} names, gpufs", f"{names:.2f} s"),
            ("the same names with attributes, nfs-rs alone", f"{alone_names:.2f} s"),
        ]
    )


def _fill(root: Path) -> list[str]:
    """The small files."""
    paths = []
    body = os.urandom(SIZE)
    for number in range(FILES):
        directory = root / f"d{number % DIRECTORIES:02}"
        directory.mkdir(exist_ok=True)
        (directory / f"{number:06}.jpg").write_bytes(body)
        paths.append(f"{directory.name}/{number:06}.jpg")
    (root / "many").mkdir()
    for number in range(NAMES):
        (root / "many" / f"{number:06}.jpg").touch()
    (root / "large").write_bytes(os.urandom(LARGE))
    return paths


def _mounted(mounted: Mounted, paths: list[str]) -> float:
    """Nothing is cached before; names are known."""
    for directory in {path.split("/")[0] for path in paths}:
        os.listdir(mounted.path / directory)
    done = mounted.command("evict", str(mounted.path))
    assert done.returncode == 0, done.stderr

    def read_all() -> None:
        with ThreadPoolExecutor(READERS) as pool:
            assert sum(pool.map(lambda path: _read(mounted.path / path), paths)) == FILES * SIZE

    return _seconds(read_all)


def _read(path: Path) -> int:
    total = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            total += len(piece)
    return total


def _connect(server: NfsServer):
    from nfs_rs import Client

    url = f"nfs://127.0.0.1{server.root}"
    return Client.connect(url, nfs_port=server.port, mount_port=server.mount_port, uid=0, gid=0)


def _alone(server: NfsServer, paths: list[str]) -> float:
    with _connect(server) as client:

        def read(path: str) -> int:
            with client.open(path) as file:
                return len(file.read())

        def read_all() -> None:
            with ThreadPoolExecutor(READERS) as pool:
                assert sum(pool.map(read, paths)) == FILES * SIZE

        return _seconds(read_all)


def _alone_large(server: NfsServer) -> float:
    with _connect(server) as client, client.open("large") as file:
        return LARGE / _seconds(lambda: [file.read_at(at, PIECE) for at in range(0, LARGE, PIECE)]) / 1e6


def _alone_names(server: NfsServer) -> float:
    with _connect(server) as client:
        return _seconds(lambda: sum(1 for _ in client.scandir("many")))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
