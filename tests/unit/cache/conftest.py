"""Fixtures of the cache tests: open caches that are always closed, and a small disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufs.cache import Cache
from gpufs.metrics import Metrics
from tests.unit.cache.helpers import open_cache, start

OpenCache = Callable[..., tuple[Cache, Metrics]]
Launch = Callable[[str, Path], subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def opened() -> Iterator[OpenCache]:
    """open_cache(), closing at the end what the test left open."""
    caches: list[Cache] = []

    def open_one(*args: object, **options: object) -> tuple[Cache, Metrics]:
        cache, metrics = open_cache(*args, **options)  # type: ignore[arg-type]
        caches.append(cache)
        return cache, metrics

    yield open_one
    for cache in caches:
        cache.close()


@pytest.fixture
def launch() -> Iterator[Launch]:
    """start() a second process, which does not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def launch_one(script: str, directory: Path) -> subprocess.Popen[str]:
        processes.append(start(script, directory))
        return processes[-1]

    yield launch_one
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB."""
    mountpoint = tmp_path / "disk"
    mountpoint.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        # Lazily: a failed test may have left a file open on it.
        subprocess.run(["umount", "--lazy", mountpoint], check=True)
