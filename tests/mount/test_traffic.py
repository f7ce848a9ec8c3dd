"""What is asked of a source at once, and a second: one that complains is heeded, and a limit is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.mounts import MountFactory
from tests.servers import BUCKET, FaultProxy, Pattern, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20
Proxy = Callable[[S3Endpoint], FaultProxy]


def test_a_source_that_refuses_more_than_some_requests_is_asked_for_no_more(
    mount: MountFactory, proxy: Proxy
) -> None:
    """Readers and warm-ups get everything, and once it is known how many it takes, hardly one is refused."""
    small = {b"%s/%04d" % (part, n): b"%06d" % n * 100 for part in (b"a", b"b") for n in range(600)}
    large = {b"large": Pattern(8 * CHUNK)}
    with listing_server(small | large) as (_, endpoint):
        between = proxy(endpoint)
        between.most, between.takes = 8, 0.005
        mounted = mount(f"s3://{BUCKET}", replace(endpoint, url=between.url)).crawled()
        done = mounted.command("warm", str(mounted.path / "a"))
        assert done.returncode == 0, done.stdout + done.stderr
        status = mounted.status()
        assert status["throttled"] > 0
        assert status["on_their_way"]["small"]["requests_limit"] <= 16
        before = status["throttled"]
        done = mounted.command("warm", str(mounted.path / "b"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert mounted.count("throttled") - before < 60
        with ThreadPoolExecutor(16) as pool:
            datas = list(pool.map(lambda key: (mounted.path / key.decode()).read_bytes(), small))
        assert datas == list(small.values())
        assert (mounted.path / "large").read_bytes() == Pattern(8 * CHUNK).read(0, 8 * CHUNK)


def test_no_more_bytes_a_second_come_than_the_limit_says(mount: MountFactory) -> None:
    """Of both processes together, and with chunks that are larger than what may come in a second."""
    limit = 3_000_000
    small = {b"small/%03d" % n: b"x" * 100_000 for n in range(100)}
    with listing_server(small | {b"large": Pattern(2 * CHUNK)}) as (_, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint, bandwidth_limit=str(limit)).crawled()
        total = sum(map(len, small.values())) + 2 * CHUNK
        begin = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            warmed = pool.submit(mounted.command, "warm", str(mounted.path / "small"))
            assert len((mounted.path / "large").read_bytes()) == 2 * CHUNK
            assert warmed.result().returncode == 0
        seconds = time.monotonic() - begin
        status = mounted.status()
        assert status["remote_bytes"] == total and status["bandwidth_limit"] == limit
        # The last request was sent when all before it were paid for.
        assert total - CHUNK <= limit * seconds * 1.05
        assert seconds < 2 * total / limit
