"""`make soak`: one mount through kill -9, eviction, changes and remounts for a while, every byte compared.

The cache is smaller than the dataset, so files are evicted all the time. The steps are drawn from a seed,
which is printed; --seed repeats them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mounts import UNEXPECTED, Mounted, daemons_of, detach, wait_until
from tests.servers import S3Endpoint, weed_server

BUCKET = "soak"
DIRECTORIES, FILES = 10, 400
LARGE = 24 << 20
READERS = 8


class Soak:
    """The mount, and beside it what every file must contain."""

    def __init__(self, server: S3Endpoint, mounted: Mounted, chance: random.Random) -> None:
        self._server = server
        self._mounted = mounted
        self._chance = chance
        self._files: dict[str, bytes] = {}
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        self._server.client().create_bucket(Bucket=BUCKET)
        for number in range(FILES):
            path = f"d{number % DIRECTORIES}/{number:04d}"
            self._files[path] = self._chance.randbytes(self._chance.randrange(200_000))
        for number in range(2):
            self._files[f"large/{number}"] = self._chance.randbytes(LARGE)
        self._server.put(BUCKET, self._files)
        self._mounted.mount()

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.read, self.kill, self.evict, self.change, self.remount]
        step = self._chance.choices(steps, (8, 2, 2, 3, 2))[0]
        step()
        self.done[step.__name__] += 1

    def read(self) -> None:
        """Read some files with several readers and compare them; the names too."""
        paths = self._chance.sample(sorted(self._files), 60)
        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(self._compare, paths))
        directory = f"d{self._chance.randrange(DIRECTORIES)}"
        names = {path.partition("/")[2] for path in self._files if path.startswith(directory + "/")}
        assert set(os.listdir(self._mounted.path / directory)) == names, directory

    def kill(self) -> None:
        """kill -9 while files are being read; the next mount has no wrong byte in its cache."""
        with ThreadPoolExecutor(READERS) as readers:
            reads = [readers.submit(self._try, path) for path in self._chance.sample(sorted(self._files), 40)]
            self._mounted.kill()
            for each in reads:
                each.result()
        self._mounted.mount()

    def evict(self) -> None:
        path = self._mounted.path / f"d{self._chance.randrange(DIRECTORIES)}"
        done = self._mounted.command("evict", str(path))
        assert done.returncode == 0, done.stderr

    def change(self) -> None:
        """Replace, add and delete at the source; after a refresh the mount shows just that."""
        small = [path for path in sorted(self._files) if not path.startswith("large/")]
        gone, changed = self._chance.sample(small, 3), self._chance.sample(small, 10)
        new = {path: self._chance.randbytes(self._chance.randrange(1, 200_000)) for path in changed}
        for path in gone:
            added = f"{path.partition('/')[0]}/{self._chance.randrange(10**9):09d}"
            new[added] = self._chance.randbytes(1000)
        self._server.put(BUCKET, new)
        self._files |= new
        objects = [{"Key": path} for path in gone]
        self._server.client().delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        for path in gone:
            del self._files[path]
        self._mounted.refresh()
        for path in new.keys() - set(gone):
            self._compare(path)
        assert not any((self._mounted.path / path).exists() for path in gone)

    def remount(self) -> None:
        """Unmount at once after a read, when the daemon still has work under way, and mount again."""
        self._compare(self._chance.choice(sorted(self._files)))
        self._mounted.remount()

    def _compare(self, path: str) -> None:
        assert (self._mounted.path / path).read_bytes() == self._files[path], f"wrong bytes in {path}"

    def _try(self, path: str) -> None:
        """Whole and right, or an error, while the daemon is being killed."""
        try:
            found = (self._mounted.path / path).read_bytes()
        except OSError:
            return
        assert found == self._files[path], f"wrong bytes in {path}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeat these steps")
    parser.add_argument("--fast-path", choices=("auto", "off"), default="auto")
    args = parser.parse_args()
    print(f"seed {args.seed}, fast_path={args.fast_path}, {args.minutes:g} minutes", flush=True)
    work = Path(tempfile.mkdtemp(prefix="gpufs-soak-", dir="/var/tmp"))
    try:
        with weed_server() as server:
            env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | server.env()
            env["GPUFS_TEST_MOUNT"] = str(work / "mnt")
            options = {
                "endpoint_url": server.url,
                "region": server.region,
                "cache_size": "40MiB",
                "fast_path": args.fast_path,
            }
            mounted = Mounted(f"s3://{BUCKET}", work, options, env)
            try:
                _run(Soak(server, mounted, random.Random(args.seed)), args.minutes)
                unexpected = UNEXPECTED.search(mounted.log())
                assert not unexpected, f"unexpected errors in the log:\n{mounted.log()}"
            finally:
                detach(mounted.path)
                wait_until(lambda: not daemons_of(mounted.path), "the daemon to end", 30)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(soak: Soak, minutes: float) -> None:
    soak.start()
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        soak.step()
    print("no wrong byte:", ", ".join(f"{count} x {what}" for what, count in soak.done.items()))


if __name__ == "__main__":
    main()
