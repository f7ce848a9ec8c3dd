"""Trouble with the cache's disk is never the reader's trouble."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.data import MIB, check, drop_pages, read_all
from tests.mounts import MountFactory, detach, wait_until

# The cache's disk is the same trouble with the fast path and without it; hits come by way of the fast one.
pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

DISK = 48 * MIB


@contextmanager
def small_disk(kind: str, work: Path) -> Iterator[Path]:
    """A disk of its own that the data set does not fit on."""
    where = work / "disk"
    where.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", where]
    else:
        image = work / "image"
        image.touch()
        os.truncate(image, DISK)
        mkfs = ["mkfs.ext4", "-q", "-F", "-m0", "-O", "^has_journal", "-e", "remount-ro", image]
        subprocess.run(mkfs, check=True)
        command = ["mount", "-o", "loop", image, where]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no {kind} can be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        detach(where)


def free_bytes(where: Path) -> int:
    disk = os.statvfs(where)
    return disk.f_bavail * disk.f_frsize


def cache_files(cache: Path) -> list[str]:
    """The files of whole objects and of parts of objects."""
    return [
        f"{folder}/{name}"
        for top in ("objects", "partial")
        for folder, _, names in os.walk(cache / top)
        for name in names
    ]


def kept_bytes(cache: Path) -> int:
    """What they take on the disk."""
    total = 0
    for path in cache_files(cache):
        with suppress(FileNotFoundError):
            total += os.stat(path).st_blocks * 512
    return total


class Watch(threading.Thread):
    """The most that was kept, and the least that was free, while the block ran."""

    def __init__(self, cache: Path) -> None:
        super().__init__()
        self.cache = cache
        self.kept, self.free = 0, DISK
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.kept = max(self.kept, kept_bytes(self.cache))
            self.free = min(self.free, free_bytes(self.cache))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("policy", ["epoch", "lru"])
def test_sixteen_readers_of_a_data_set_larger_than_the_disk(
    dataset: Dataset, mount: MountFactory, tmp_path: Path, kind: str, policy: str
) -> None:
    """Case 13: all bytes right, both limits kept while it happens, and the mount goes on."""
    with small_disk(kind, tmp_path) as disk:
        mounted = mount(
            dataset.url,
            dataset.server,
            cache_dir=f"{disk}/cache",
            cache_size="24MiB",
            min_free="8MiB",
            policy=policy,
        ).crawled()
        with Watch(mounted.cache) as watch:
            for seed in (1, 2):
                read_all(mounted.path, dataset.objects, readers=16, seed=seed)
        assert 12 * MIB <= watch.kept <= 24 * MIB
        assert watch.free >= 8 * MIB
        # the fast path reports its opens in batches
        wait_until(lambda: mounted.count("opens") == 2 * len(dataset.objects), "all opens to be counted", 10)
        status = mounted.status()
        assert status["hits"] + status["misses"] == status["opens"]
        assert status["cache_bytes"] <= 24 * MIB
        assert status["evictions" if policy == "lru" else "not_admitted"] > 0
        wait_until(
            lambda: abs(mounted.status()["cache_bytes"] - kept_bytes(mounted.cache)) < MIB,
            "two processes that evict each other's entries to agree with the disk",
            10,
        )
        mounted.umount()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_that_others_filled_up(
    dataset: Dataset, mount: MountFactory, tmp_path: Path, kind: str
) -> None:
    """Full to the last block, index and all: readers get their bytes, and names that are known stay so."""
    with small_disk(kind, tmp_path) as disk:
        mounted = mount(dataset.url, dataset.server, cache_dir=f"{disk}/cache", min_free="0").crawled()
        mounted.may_log_errors = True
        with open(disk / "ballast", "wb", 0) as ballast, suppress(OSError):
            while ballast.write(bytes(MIB)):
                pass
        read_all(mounted.path, dataset.objects)
        assert len(list(mounted.path.rglob("*.bin"))) == len(dataset.objects)
        (disk / "ballast").unlink()
        read_all(mounted.path, dataset.objects)
        mounted.umount()


def test_a_disk_that_is_full_before_anything_is_listed(
    dataset: Dataset, mount: MountFactory, tmp_path: Path
) -> None:
    """No room for the index: the mount says so or works; it never dies while it is in use."""
    with small_disk("tmpfs", tmp_path) as disk:
        mounted = mount(dataset.url, dataset.server, start=False, cache_dir=f"{disk}/cache", min_free="0")
        mounted.may_log_errors = True
        with (disk / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, free_bytes(disk) - 64 * 1024)
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        if done.returncode:
            assert done.stderr.count("\n") == 1 and "is the disk full?" in done.stderr, done.stderr
            (disk / "ballast").unlink()
            mounted.mount()
        else:
            (disk / "ballast").unlink()
        read_all(mounted.path, dataset.objects)
        mounted.umount()


def test_cache_files_deleted_behind_the_daemons_back(dataset: Dataset, mount: MountFactory) -> None:
    """Case 10: an open one reads on from its descriptor, the others are fetched again; never EIO."""
    mounted = mount(dataset.url, dataset.server)
    data = dataset.objects
    read_all(mounted.path, data)
    small, large = "train/00/000.bin", "large/0.bin"
    with open(mounted.path / small, "rb", 0) as a, open(mounted.path / large, "rb", 0) as b:
        os.posix_fadvise(a.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(b.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        requests = mounted.count("remote_requests")
        deleted = cache_files(mounted.cache)
        for path in deleted:
            os.unlink(path)
        assert len(deleted) >= len(data)
        assert a.read() == data[small] and os.pread(b.fileno(), 20 * MIB, 0) == data[large]
        assert mounted.count("remote_requests") == requests
    drop_pages(mounted.path, data)
    read_all(mounted.path, data)
    assert mounted.count("cache_objects") >= len(data)


@pytest.mark.parametrize("again", [True, False], ids=["put back empty", "gone"])
def test_the_cache_directory_deleted_while_mounted(
    dataset: Dataset, mount: MountFactory, again: bool
) -> None:
    """Names and bytes keep coming; whatever was open reads on; it unmounts and mounts again."""
    mounted = mount(dataset.url, dataset.server).crawled()
    mounted.may_log_errors = True
    data = dataset.objects
    first = next(iter(data))
    with (mounted.path / first).open("rb", buffering=0) as file:
        read_all(mounted.path, {"large/0.bin": data["large/0.bin"]})
        shutil.rmtree(mounted.cache)
        if again:
            mounted.cache.mkdir(mode=0o700)
        assert file.read() == data[first]
        drop_pages(mounted.path, data)
        read_all(mounted.path, data)
        assert len(list(mounted.path.rglob("*.bin"))) == len(data)
    mounted.remount()
    read_all(mounted.path, data)


def test_a_cache_disk_that_becomes_read_only(dataset: Dataset, mount: MountFactory, tmp_path: Path) -> None:
    """As file systems do after an error: what is cached is still used, the rest passes by."""
    with small_disk("ext4", tmp_path) as disk:
        mounted = mount(dataset.url, dataset.server, cache_dir=f"{disk}/cache", min_free="0").crawled()
        mounted.may_log_errors = True
        data = dataset.objects
        cached = dict(list(data.items())[:8])
        read_all(mounted.path, cached)
        device = os.path.basename(os.path.realpath(f"/sys/dev/block/{device_number(disk)}"))
        try:
            Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("gpufs test")
        except OSError as error:
            pytest.skip(f"no error can be injected into ext4 here: {error}")
        with pytest.raises(OSError, match="Read-only"):
            (disk / "probe").touch()
        drop_pages(mounted.path, data)
        misses = mounted.count("misses")
        read_all(mounted.path, cached)
        assert mounted.count("misses") == misses
        read_all(mounted.path, data)
        assert mounted.count("cache_errors") > 0
        check(mounted.path / "large/1.bin", data["large/1.bin"])
        mounted.umount()


def device_number(where: Path) -> str:
    number = os.stat(where).st_dev
    return f"{os.major(number)}:{os.minor(number)}"
