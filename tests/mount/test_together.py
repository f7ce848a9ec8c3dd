"""Everything that fetches, at once: readers, an announced order, a warm-up and an epoch fill."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufs import hints
from tests.mounts import GPUFS, MountFactory
from tests.servers import BUCKET, Fault, FaultProxy, Pattern, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20
LARGE = 6 * CHUNK + 5
SMALL = 400


def test_no_byte_is_fetched_twice(mount: MountFactory, proxy: Callable[[S3Endpoint], FaultProxy]) -> None:
    """Whoever wants an object or a chunk that is on its way waits for that; all get the right bytes."""
    small = {f"d{number % 4}/{number:04}": b"%08d" % number * 1000 for number in range(SMALL)}
    objects = {name.encode(): body for name, body in small.items()}
    large = {f"large/{number}": Pattern(LARGE) for number in range(3)}
    with listing_server(objects | {name.encode(): body for name, body in large.items()}) as (_, endpoint):
        front = proxy(endpoint)
        mounted = mount(f"s3://{BUCKET}", endpoint, endpoint_url=front.url).crawled()
        front.forget()
        front.add(Fault("delay", kind="GET", seconds=0.01))
        order = random.Random(1).sample([*small, *large], len(small) + len(large))
        with (
            subprocess.Popen(
                [*GPUFS, "warm", str(mounted.path)], env=mounted.env, stdout=subprocess.PIPE
            ) as warm,
            ThreadPoolExecutor(9) as pool,
        ):
            announced = pool.submit(hints.announce, mounted.path, order)
            # Each file by two readers, in two orders.
            again = random.Random(2).sample(order, len(order))
            read = pool.map(lambda name: (name, (mounted.path / name).read_bytes()), [*order, *again])
            for name, data in read:
                assert data == (small[name] if name in small else Pattern(LARGE).read(0, LARGE))
            assert announced.result()
        assert warm.returncode == 0
        asked: dict[str, list[tuple[int, int]]] = {}
        for seen in front.seen("GET"):
            start, _, end = seen.headers.get("range", "bytes=0-0").removeprefix("bytes=").partition("-")
            asked.setdefault(seen.target.removeprefix(f"/{BUCKET}/"), []).append((int(start), int(end) + 1))
        assert {name: len(asked[name]) for name in small} == dict.fromkeys(small, 1)
        for name in large:  # in pieces while somebody reads
            starts, ends = zip(*sorted(asked[name]), strict=True)
            assert starts == (0, *ends[:-1]) and ends[-1] == LARGE
        assert mounted.count("remote_bytes") == sum(map(len, small.values())) + 3 * LARGE
        assert mounted.count("misses") < 2 * len(order), "some were here before they were opened"
