"""`make soak`: one mount through kill -9 of its processes, under readers that must not notice."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from tests.faults.crashes import crash
from tests.faults.data import large_files, read_all, small_files
from tests.mounts import Mounted, daemons_of, detach, wait_until
from tests.servers import S3Endpoint, weed_server

BUCKET = "soak"
COLD = [*(f"train/{n:02}" for n in range(4, 8)), "large/2.bin"]
KILLS = 54  # in one round; after each what the mount holds is compared
LONGEST_PAUSE = 3.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_crashes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long at least (default: 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeat these moments")
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.minutes:g} minutes", flush=True)
    work = Path(tempfile.mkdtemp(prefix="gpufs-soak-", dir="/var/tmp"))
    try:
        with weed_server() as server:
            _run(server, work, random.Random(args.seed), time.monotonic() + args.minutes * 60)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(server: S3Endpoint, work: Path, chance: random.Random, end: float) -> None:
    objects = small_files(64) | large_files(3)
    server.client().create_bucket(Bucket=BUCKET)
    server.put(BUCKET, objects)
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | server.env()
    env["GPUFS_TEST_MOUNT"] = str(work / "mnt")
    options = {"endpoint_url": server.url, "region": server.region, "fast_path": "auto"}
    mounted = Mounted(f"s3://{BUCKET}", work, options, env)
    try:
        mounted.mount().crawled()
        read_all(mounted.path, objects)
        longest = 0.0
        while time.monotonic() < end or not longest:
            load = crash(mounted, objects, COLD, work, chance, KILLS)
            longest = max(longest, load.longest)
        assert longest < LONGEST_PAUSE, f"the longest call took {longest:.1f} s"
    finally:
        detach(mounted.path)
        wait_until(lambda: not daemons_of(mounted.path), "the daemon to end", 30)


if __name__ == "__main__":
    main()
