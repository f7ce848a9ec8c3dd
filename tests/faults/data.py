"""The data set of the fault tests: its bytes follow from its names, so any process can check them."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 1 << 20


def content(name: str, size: int) -> bytes:
    """`size` bytes in which no two places look alike."""
    return hashlib.shake_128(name.encode()).digest(size)


def small_files(count: int, size: int = 300_000) -> dict[str, bytes]:
    """`count` objects in directories of eight, each of a size of its own."""
    names = [f"train/{n // 8:02}/{n:03}.bin" for n in range(count)]
    return {name: content(name, size + 1001 * n) for n, name in enumerate(names)}


def large_files(count: int, size: int = 9 * MIB + 777) -> dict[str, bytes]:
    return {f"large/{n}.bin": content(f"large/{n}.bin", size) for n in range(count)}


def read_all(root: Path, data: dict[str, bytes], *, readers: int = 8, seed: int = 0) -> None:
    """Read every file of `data` below `root` by `readers` threads, in random order; all bytes are right."""
    order = list(data)
    random.Random(seed).shuffle(order)
    in_parallel(lambda name: check(root / name, data[name]), order, readers)


def check(path: Path, expected: bytes) -> None:
    found = path.read_bytes()
    assert len(found) == len(expected), f"{path}: {len(found)} bytes instead of {len(expected)}"
    if found != expected:
        first = next(n for n, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        raise AssertionError(f"{path}: wrong bytes from {first} on")


def in_parallel(work: Callable[[str], None], items: Iterable[str], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, item) for item in items]:
            done.result()


def errno_of_read(path: Path, offset: int = 0, length: int = 4096) -> int:
    """The errno that opening and reading gives; 0 when it succeeds."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        return error.errno or -1
    try:
        os.pread(fd, length, offset)
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(fd)
    return 0


def drop_pages(root: Path, names: dict[str, bytes]) -> None:
    """Have the next reads of these files ask the daemon, not the kernel's page cache."""
    for name in names:
        fd = os.open(root / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
