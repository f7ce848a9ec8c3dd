"""Page cache that a working set of 2 GiB takes when it is read from the local cache: it is held once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.lab import MIB, table
from tests.mounts import Mounted, daemons_of, detach, wait_until

LARGE, LARGE_SIZE = 24, 64 * MIB
SMALL, SMALL_SIZE = 8192, 64 << 10


def run() -> None:
    work = Path(tempfile.mkdtemp(prefix="gpufs-bench-", dir="/var/tmp"))
    try:
        source = _dataset(work / "source")
        rows = [("working set", f"{(LARGE * LARGE_SIZE + SMALL * SMALL_SIZE) / MIB:,.0f} MiB")]
        for name, fast_path, overlay in (
            ("passthrough", "auto", False),
            ("fast path without passthrough (cache on overlayfs)", "auto", True),
            ("fast_path=off", "off", False),
        ):
            with _mounted(source, work / fast_path / str(overlay), fast_path, overlay) as mounted:
                _read(mounted.path)
                before = _free(drop=True)
                _read(mounted.path)
                assert mounted.status()["cache_bytes"] >= LARGE * LARGE_SIZE
                rows.append((name, f"{before - _free():,.0f} MiB less free after reading it"))
        table(rows)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _dataset(root: Path) -> Path:
    for number in range(LARGE):
        _write(root / f"large/{number}", LARGE_SIZE)
    for number in range(SMALL):
        _write(root / f"small/{number // 512}/{number}", SMALL_SIZE)
    return root


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


@contextmanager
def _mounted(source: Path, work: Path, fast_path: str, overlay: bool) -> Iterator[Mounted]:
    work.mkdir(parents=True)
    options = {"fast_path": fast_path, "cache_dir": str(work / "cache")}
    if overlay:
        parts = [work / name for name in ("lower", "upper", "work", "cache")]
        for part in parts:
            part.mkdir(mode=0o700)
        layers = f"lowerdir={parts[0]},upperdir={parts[1]},workdir={parts[2]}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, parts[3]], check=True)
    mounted = Mounted(f"file://{source}", work, options, dict(os.environ, GPUFS_TEST_MOUNT=str(work / "mnt")))
    try:
        yield mounted.mount()
    finally:
        detach(mounted.path)
        wait_until(lambda: not daemons_of(mounted.path), "the daemon to end", 30)
        if overlay:
            detach(work / "cache")


def _read(root: Path) -> None:
    buffer = bytearray(MIB)
    for folder, _, names in os.walk(root):
        for name in names:
            with open(f"{folder}/{name}", "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _free(*, drop: bool = False) -> float:
    """What `free` shows as free, in MiB; after all clean pages were dropped, when told to."""
    if drop:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    lines = Path("/proc/meminfo").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return values["MemFree"] / 1024
