"""Three hosts and a cache that they share: what the source serves, and what that costs.

The source is 20 ms away; the shared cache is a SeaweedFS on the same processors as all else, so that it
costs more here than on servers of its own. Targets: each object is fetched from the source once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from tests.bench.lab import as_they_come, prepared
from tests.mounts import Mounted
from tests.servers import S3Endpoint, weed_server
from tests.servers.distant import Distant, distant_server

FILES, SIZE, SECONDS = 600, 100_000, 0.02
READERS = 8
HOSTS = 3
KEYS = [f"d{n % 10}/{n:05d}" for n in range(FILES)]


def run() -> None:
    as_they_come(_rows())


def _rows() -> Iterator[tuple[str, str]]:
    with weed_server() as weed:
        for name in ("together", "alone"):
            weed.client().create_bucket(Bucket=name)
        for what, tier in (("without a shared cache", None), ("with an empty one", "alone")):
            with _hosts(1, weed, tier) as (origin, hosts):
                seconds = _read(hosts[0], 0)
                yield f"one host, {what}", f"{seconds:.1f} s, {_fetched(origin)}"
        for what, tier in (("without a shared cache", None), ("with an empty one", "together")):
            with _hosts(HOSTS, weed, tier) as (origin, hosts):
                yield (
                    f"{HOSTS} hosts at the same time, {what}",
                    f"{_together(hosts):.1f} s, {_fetched(origin)}",
                )
                if tier is not None:
                    hits = sum(host.count("shared_hits") for host in hosts)
                    yield "  of that from the shared cache", f"{hits} of {HOSTS * FILES}"
                    with _mounted(origin, weed, tier) as another:
                        before = origin.fetched().total()
                        seconds = _read(another, 99)
                        more = origin.fetched().total() - before
                        yield "one host more, with the full one", f"{seconds:.1f} s, {more} from the source"


@contextmanager
def _hosts(count: int, weed: S3Endpoint, tier: str | None) -> Iterator[tuple[Distant, Sequence[Mounted]]]:
    with ExitStack() as stack:
        origin = stack.enter_context(distant_server(KEYS, SIZE, SECONDS))
        yield origin, [stack.enter_context(_mounted(origin, weed, tier)) for _ in range(count)]


@contextmanager
def _mounted(origin: Distant, weed: S3Endpoint, tier: str | None) -> Iterator[Mounted]:
    options = {}
    if tier is not None:
        options = {"shared_cache": f"s3://{tier}", "shared_cache_endpoint_url": weed.url}
    with prepared(origin.endpoint, **options) as mounted:
        mounted.env |= weed.env()
        mounted.mount().crawled()
        yield mounted
        mounted.umount()


def _together(hosts: Sequence[Mounted]) -> float:
    begin = time.monotonic()
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(_read, hosts, range(len(hosts))))
    return time.monotonic() - begin


def _read(mounted: Mounted, seed: int) -> float:
    """Everything in a random order; seconds."""
    names = random.Random(seed).sample(KEYS, FILES)
    begin = time.monotonic()
    with ThreadPoolExecutor(READERS) as pool:
        sizes = list(pool.map(lambda name: len((mounted.path / name).read_bytes()), names))
    assert sizes == [SIZE] * FILES
    return time.monotonic() - begin


def _fetched(origin: Distant) -> str:
    fetched = origin.fetched()
    return f"{fetched.total()} requests to the source for {len(fetched)} files"
