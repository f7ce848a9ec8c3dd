"""What limits the readers is told rightly in real situations: servers that are far, links that are full."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from gpufs.observe.figures import Figures
from gpufs.observe.limit import limit_of
from gpufs.observe.rates import Interval
from tests.mounts import Mounted, MountFactory, ask
from tests.servers import BUCKET, Pattern, listing_server
from tests.servers.distant import distant_server
from tests.servers.link import slow_link

pytestmark = [pytest.mark.fuse, pytest.mark.alone, pytest.mark.parametrize("fast_path", ["auto"])]

DISTANCE = 0.05
SIZE = 20_000
SECONDS = 2.0  # that are looked at


@contextmanager
def at_work(work: Callable[[random.Random], object], readers: int) -> Iterator[None]:
    """Inside, so many threads do `work` again and again."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        chance = random.Random(number)
        try:
            while not over.is_set():
                work(chance)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def limit(mounted: Mounted, work: Callable[[random.Random], object], readers: int) -> str:
    """What limits the readers while they are at it."""
    with at_work(work, readers):
        time.sleep(1.0)
        before = Figures.from_json(ask(mounted, "figures"))
        time.sleep(SECONDS)
        verdict = limit_of(Interval(before, Figures.from_json(ask(mounted, "figures"))))
    print(verdict)
    return verdict.what


def one_after_another(paths: list[Path]) -> Callable[[random.Random], object]:
    """Each file once, then the first again, in an order that nobody can guess; for all readers together."""
    shuffled = random.Random(0).sample(paths, len(paths))
    number = count()
    return lambda chance: shuffled[next(number) % len(shuffled)].read_bytes()


def test_a_few_readers_of_a_source_that_is_far_away(mount: MountFactory) -> None:
    keys = [f"{n:04}/x" for n in range(3000)]  # a directory each: what is read makes no pattern
    with distant_server(keys, SIZE, DISTANCE) as distant:
        mounted = mount(f"s3://{BUCKET}", distant.endpoint).crawled()
        assert limit(mounted, one_after_another([mounted.path / key for key in keys]), 3) == "remote latency"


def test_a_link_that_is_full(mount: MountFactory) -> None:
    objects = {b"%04d/x" % n: Pattern(300_000) for n in range(1000)}
    with (
        listing_server(objects) as (_, endpoint),
        slow_link(endpoint.url, rate=6e6, round_trip=0.005) as url,
    ):
        mounted = mount(f"s3://{BUCKET}", replace(endpoint, url=url)).crawled()
        paths = [mounted.path / os.fsdecode(key) for key in objects]
        assert limit(mounted, one_after_another(paths), 8) == "remote bandwidth"


def test_a_cache_for_half_of_the_data(mount: MountFactory) -> None:
    keys = [f"{n:04}/x" for n in range(600)]
    with distant_server(keys, SIZE, 0.02) as distant:
        mounted = mount(f"s3://{BUCKET}", distant.endpoint, cache_size=str(300 * SIZE)).crawled()
        paths = [mounted.path / key for key in keys]
        for path in paths:
            path.read_bytes()
        assert limit(mounted, one_after_another(paths), 4) == "cache too small"


def test_directories_that_have_to_be_listed_again_and_again(mount: MountFactory) -> None:
    keys = [f"{n:04}/x" for n in range(400)]
    with distant_server(keys, SIZE, DISTANCE) as distant:
        mounted = mount(f"s3://{BUCKET}", distant.endpoint, metadata_ttl="500ms").crawled()

        def listing(chance: random.Random) -> None:
            os.listdir(mounted.path / f"{chance.randrange(400):04}")

        assert limit(mounted, listing, 4) == "metadata"


def test_a_storm_of_names_that_are_not_there(mount: MountFactory, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mounted = mount(f"file://{tmp_path}/data")
    number = count()
    assert limit(mounted, lambda _: (mounted.path / f"{next(number)}").exists(), 2) == "metadata"


def test_files_that_are_all_here(mount: MountFactory, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in range(100):
        (tmp_path / "data" / f"{name}").write_bytes(b"x" * SIZE)
    mounted = mount(f"file://{tmp_path}/data")
    paths = [mounted.path / f"{name}" for name in range(100)]
    for path in paths:
        path.read_bytes()
    assert limit(mounted, one_after_another(paths), 4) == "nothing"
