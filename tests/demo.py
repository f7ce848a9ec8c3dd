"""`make demo`: a real S3 server with a sample data set, mounted, read cold and warm, verified.

Everything it starts and writes lives in one temporary directory and is gone at the end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tests.servers import S3Endpoint, weed_server

SMALL_FILES, LARGE_FILES = 2000, 2
SMALL_BYTES, LARGE_BYTES = (7_000, 117_000), 64 << 20
READERS = 8
GPUFS = [sys.executable, "-m", "gpufs"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of the whole data set."""

    name: str
    seconds: float
    files: int
    bytes: int
    remote_requests: int
    wrong: int

    def row(self) -> str:
        return (
            f"  {self.name:<28}{self.files / self.seconds:>10,.0f}{self.bytes / self.seconds / 1e6:>10,.0f}"
            f"{self.remote_requests:>10,}   {'all equal' if not self.wrong else f'{self.wrong} WRONG'}"
        )


def make_dataset() -> dict[str, bytes]:
    """A tree shaped like an image data set with two large shards: path -> contents."""
    source = random.Random(7)
    objects = {
        f"train/{number % 20:03d}/{number:06d}.jpg": source.randbytes(source.randrange(*SMALL_BYTES))
        for number in range(SMALL_FILES)
    }
    for number in range(LARGE_FILES):
        objects[f"shards/{number}.tar"] = source.randbytes(LARGE_BYTES)
    return objects


def read_all(name: str, root: Path, expected: dict[str, int]) -> Pass:
    """Read every file with a few threads and compare its hash with what was uploaded."""

    def read(path: str) -> tuple[int, bool]:
        data = (root / path).read_bytes()
        return len(data), xxhash.xxh3_64_intdigest(data) == expected[path]

    paths = list(expected)
    random.Random(3).shuffle(paths)
    before = requests(root)
    began = time.monotonic()
    with ThreadPoolExecutor(READERS) as pool:
        results = list(pool.map(read, paths))
    return Pass(
        name,
        time.monotonic() - began,
        len(results),
        sum(size for size, _ in results),
        requests(root) - before,
        sum(not right for _, right in results),
    )


def requests(root: Path) -> int:
    status = subprocess.run(
        [*GPUFS, "status", str(root), "--json"], check=True, capture_output=True, text=True
    )
    return int(json.loads(status.stdout)["remote_requests"])


def gpufs(server: S3Endpoint, *arguments: str) -> None:
    print(f"$ gpufs {' '.join(arguments)}", flush=True)
    subprocess.run([*GPUFS, *arguments], check=True, env=dict(os.environ, **server.env()))


def drop_page_cache() -> bool:
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def main() -> int:
    work = Path(tempfile.mkdtemp(prefix="gpufs-demo-"))
    mountpoint = work / "data"
    mountpoint.mkdir()
    try:
        print("Starting an S3 server (SeaweedFS) and filling a bucket ...", flush=True)
        with weed_server() as server:
            objects = make_dataset()
            server.client().create_bucket(Bucket="demo")
            server.put("demo", objects)
            expected = {path: xxhash.xxh3_64_intdigest(data) for path, data in objects.items()}
            del objects
            options = f"endpoint_url={server.url},cache_dir={work}/cache,metadata_ttl=forever"
            gpufs(server, "mount", "s3://demo", str(mountpoint), "-o", options)
            try:
                passes = [
                    read_all("first epoch (cold)", mountpoint, expected),
                    read_all("second epoch (warm)", mountpoint, expected),
                ]
                if drop_page_cache():
                    passes.append(read_all("third, kernel cache dropped", mountpoint, expected))
            finally:
                gpufs(server, "umount", str(mountpoint))
            began = time.monotonic()
            gpufs(server, "mount", "s3://demo", str(mountpoint), "-o", options)
            try:
                os.stat(mountpoint / next(iter(expected)))
                first_stat = time.monotonic() - began
                passes.append(read_all("after a remount", mountpoint, expected))
            finally:
                gpufs(server, "umount", str(mountpoint))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    total = sum(p.bytes for p in passes[:1])
    print(
        f"\n{SMALL_FILES:,} small files, {LARGE_FILES} large ones, {total / 1e6:,.0f} MB, {READERS} readers"
    )
    print(f"  {'':<28}{'files/s':>10}{'MB/s':>10}{'remote':>10}   bytes")
    for one in passes:
        print(one.row())
    print(f"  first stat {first_stat:.2f} s after the remount's command began\n")
    # A mount connects in advance, behind its readers' backs: that may be one request.
    asked = any(p.remote_requests for p in passes[1:-1]) or passes[-1].remote_requests > 1
    if any(p.wrong for p in passes) or asked:
        print("FAILED: wrong bytes, or remote requests for what was cached")
        return 1
    print("Every byte read equals what was uploaded; every pass but the first came from this host.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
