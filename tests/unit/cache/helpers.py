"""What the tests of the cache share: digests, contents, a second process, and what is on the disk."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from gpufs.cache import CHUNK, Cache, Limit
from gpufs.metrics import Metrics
from gpufs.options import Policy

MIB = 2**20
REPOSITORY = Path(__file__).parents[3]

PRELUDE = """
import os, signal, sys, threading
from pathlib import Path
from tests.unit.cache.helpers import *
directory = Path(sys.argv[1])
"""


def digest_of(name: object) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()


def content(name: object, size: int) -> memoryview:
    """`size` bytes that no other name has."""
    seed = hashlib.blake2b(str(name).encode(), digest_size=32).digest()
    return memoryview((seed * (size // 32 + 1))[:size])


def chunk_content(name: object, chunk: int, size: int) -> memoryview:
    return content((name, chunk), min(CHUNK, size - chunk * CHUNK))


def open_cache(
    directory: Path,
    *,
    size: int = 2**30,
    min_free: int = 0,
    boot_id: str = "boot-1",
    policy: Policy = "lru",
) -> tuple[Cache, Metrics]:
    """`policy`: with the default one few tests could tell what will be evicted."""
    metrics = Metrics()
    cache = Cache(
        directory,
        cache_size=Limit(size),
        min_free=Limit(min_free),
        metrics=metrics,
        policy=policy,
        boot_id=boot_id,
    )
    return cache, metrics


def read_all(fd: int) -> bytes:
    """The whole content of a descriptor, which is closed."""
    try:
        return os.pread(fd, os.fstat(fd).st_size + 1, 0)
    finally:
        os.close(fd)


def publish(cache: Cache, name: object, size: int) -> None:
    assert read_all(cache.publish(digest_of(name), content(name, size), "test")) == content(name, size)


def lookup(cache: Cache, name: object) -> bytes | None:
    fd = cache.open_object(digest_of(name))
    return None if fd is None else read_all(fd)


def publish_compressed(cache: Cache, name: object, size: int) -> None:
    fd = cache.publish(digest_of(name), content(name, size), "test", compress=True)
    assert read_all(fd) == content(name, size)


def expand(cache: Cache, name: object, size: int) -> bytes | None:
    fd = cache.expand(digest_of(name), size)
    return None if fd is None else read_all(fd)


def object_files(directory: Path) -> dict[bytes, Path]:
    return {bytes.fromhex(p.name): p for p in (directory / "objects").glob("??/*")}


def compressed_files(directory: Path) -> dict[bytes, Path]:
    return {bytes.fromhex(p.name): p for p in (directory / "compressed").glob("??/*")}


def bytes_on_disk(directory: Path) -> int:
    """Bytes in whole blocks of all in objects/, compressed/ and unverified/, and of the data of partial/."""
    files = [
        path for top in ("objects", "compressed", "unverified") for path in directory.glob(f"{top}/??/*")
    ]
    whole = sum(-(-p.stat().st_size // 4096) * 4096 for p in files)
    return whole + sum(p.stat().st_blocks * 512 for p in directory.glob("partial/*") if p.suffix != ".map")


def start(script: str, directory: Path) -> subprocess.Popen[str]:
    """A second process that runs `script` with these helpers, talking over its pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )


def run_killed(script: str, directory: Path) -> None:
    """Run a script that must end by its own kill -9."""
    process = start(script, directory)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL


def run_to_end(script: str, directory: Path) -> str:
    process = start(script, directory)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    return out


def scrub(cache: Cache) -> None:
    cache.scrub(lambda: False)
