"""`compress=auto` on real mounts: the same bytes from less disk, whoever reads them and how."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mounts import Mounted, MountFactory, wait_until
from tests.servers import BUCKET, listing_server

pytestmark = pytest.mark.fuse

Tree = Callable[[Path], dict[str, bytes]]
COUNT = 60
SIZE = 50_000


def text(number: int, size: int) -> bytes:
    chosen = random.Random(number)
    words = [f"{chosen.getrandbits(24):x}" for _ in range(200)]
    return " ".join(chosen.choices(words, k=size // 4)).encode()[:size]


def objects() -> dict[bytes, bytes]:
    """Text, and what does not compress; a byte, a block, a chunk and more."""
    found = {b"text/%04d.txt" % n: text(n, SIZE + n) for n in range(COUNT)}
    found |= {b"image/%04d.jpeg" % n: os.urandom(SIZE) for n in range(20)}
    found |= {b"edge/byte": b"x", b"edge/block": b"x" * 4096, b"edge/chunk": text(1, 4 << 20)}
    return found | {b"edge/more": text(2, (4 << 20) + 1), b"edge/empty": b""}


def blocks(size: int) -> int:
    return -(-size // 4096) * 4096


def compressed_files(mounted: Mounted) -> list[Path]:
    return sorted(mounted.cache.glob("compressed/??/*"))


def test_text_takes_less_and_reads_right(mount: MountFactory, tree_of: Tree) -> None:
    """Cold, warm, from the cache of an earlier mount, and by a second mount that wants no compression.

    Nothing is fetched twice, and an open of what is kept compressed is a hit.
    """
    data = objects()
    expected = {os.fsdecode(key): body for key, body in data.items()}
    with listing_server(data) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint, compress="auto")
        passthrough = mounted.options["fast_path"] == "auto"
        assert tree_of(mounted.path) == expected
        fetched = server.counts["GET"]
        assert fetched == len(data) - 2 + 2, (
            "each once, and the large one in two parts; nothing for the empty one"
        )
        status = mounted.status()
        assert status["passthrough"] is passthrough
        assert status["compressed"] == COUNT + 1 == len(compressed_files(mounted))
        plain = sum(blocks(len(body)) for body in data.values())
        assert plain - status["compressed_saved"] == status["cache_bytes"] < 0.75 * plain
        shown = mounted.command("status", str(mounted.path)).stdout
        assert f"{COUNT + 1} kept compressed, " in shown

        hits = mounted.count("hits")
        assert tree_of(mounted.path) == expected
        wait_until(lambda: mounted.count("hits") - hits == len(data), "all opens to be counted as hits")
        assert mounted.command("warm", str(mounted.path)).stdout.rstrip().endswith("all cached already")
        cached = os.getxattr(mounted.path / "text/0000.txt", "user.gpufs.cached")
        assert cached == b"yes"

        mounted.remount()
        assert tree_of(mounted.path) == expected
        other = mount(f"s3://{BUCKET}", endpoint, cache_dir=str(mounted.cache))
        assert other.options.get("compress") is None
        assert tree_of(other.path) == expected
        assert server.counts["GET"] == fetched, "nothing was fetched twice"

        other.umount()  # or it might still hold expanded files
        done = mounted.command("evict", str(mounted.path / "text"))
        assert done.returncode == 0, done.stderr
        assert len(compressed_files(mounted)) == 1
        other.mount()
        assert tree_of(other.path / "text") == {
            name[5:]: body for name, body in expected.items() if name.startswith("text/")
        }
        assert len(compressed_files(mounted)) == 1, "the second mount keeps plain objects"
        assert server.counts["GET"] == fetched + COUNT
        assert mounted.count("corrupt_entries") == other.count("corrupt_entries") == 0
        other.umount()
        mounted.umount()


def test_readers_at_once_and_damage_that_nobody_notices(mount: MountFactory) -> None:
    """Many opens of one file at once; mmap and partial reads; a damaged file is fetched again."""
    data = {b"text/%04d.txt" % n: text(n, SIZE + n) for n in range(8)}
    with listing_server(data) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint, compress="auto")
        assert mounted.command("warm", str(mounted.path)).returncode == 0
        assert len(compressed_files(mounted)) == len(data)

        def read(number: int) -> None:
            body = data[b"text/%04d.txt" % (number % 8)]
            with open(mounted.path / f"text/{number % 8:04}.txt", "rb", buffering=0) as file:
                assert os.pread(file.fileno(), 1000, SIZE // 2) == body[SIZE // 2 :][:1000]
                assert file.readall() == body
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == body
            done = subprocess.run(["cat", file.name], capture_output=True, check=True)
            assert done.stdout == body

        with ThreadPoolExecutor(16) as pool:
            assert len(list(pool.map(read, range(64)))) == 64
        assert server.counts["GET"] == len(data)
        mounted.remount()  # nobody holds an expanded file any more
        for path in compressed_files(mounted)[:3]:
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"damage")
        for number in range(16):
            read(number)
        assert mounted.count("corrupt_entries") == 3
        assert server.counts["GET"] == len(data) + 3
        mounted.umount()
