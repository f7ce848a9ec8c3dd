"""A server that misbehaves: readers get the right bytes or an error in time, never anything else."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpufs.cache import CHUNK
from tests.faults.conftest import Dataset
from tests.faults.data import check, drop_pages, errno_of_read, read_all
from tests.mounts import Mounted, MountFactory, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint

DEADLINE = 60.0  # seconds a request may take, repeats included (gpufs.source.retry)
MARGIN = 8.0  # seconds for a busy machine

ProxyFactory = Callable[[S3Endpoint], FaultProxy]


def behind(dataset: Dataset, proxy: FaultProxy) -> S3Endpoint:
    return replace(dataset.server, url=proxy.url)


def test_bursts_of_errors_are_never_seen(dataset: Dataset, proxy: ProxyFactory, mount: MountFactory) -> None:
    """503, 500, resets, cut bodies and flipped bits, while 8 readers check every byte. Case 12."""
    between = proxy(dataset.server)
    faults = [
        Fault("status", "LIST", times=2),
        Fault("reset", "LIST", times=1),
        Fault("close", "LIST", times=1, after=300),
        Fault("status", "GET", times=16, status=503, code="SlowDown"),
        Fault("status", "GET", times=16, status=500, code="InternalError"),
        Fault("reset", "GET", times=8),
        Fault("close", "GET", times=8, after=1000),
        # small files have a checksum, and only they: their MD5 is the ETag
        *(Fault("flip", "GET", f"train/{n:02}/", times=2, after=100_000) for n in range(8)),
    ]
    for fault in faults:
        between.add(fault)
    mounted = mount(dataset.url, behind(dataset, between)).crawled()
    read_all(mounted.path, dataset.objects)
    assert [fault for fault in faults if fault.times] == [], "these faults never came to be"
    requests = mounted.count("remote_requests")
    drop_pages(mounted.path, dataset.objects)
    read_all(mounted.path, dataset.objects)  # what was kept is right too
    status = mounted.status()
    assert status["remote_requests"] == requests
    assert status["retries"] >= 16 * 2 + 8 * 2 + 2 * 8


@pytest.mark.parametrize("fast_path", ["auto"])  # it takes a minute
def test_what_never_ends_is_an_error_at_the_deadline(
    dataset: Dataset, proxy: ProxyFactory, mount: MountFactory
) -> None:
    """Wrong bytes, short bodies and refusals for ever: EIO. Silence: ETIMEDOUT, and nobody else waits.

    Nothing of it is kept: when the fault has gone the right bytes come. And a server that is down
    altogether, at the same time, for it takes as long.
    """
    between, gone = proxy(dataset.server), proxy(dataset.server)
    mounted = mount(dataset.url, behind(dataset, between)).crawled()
    other = mount(dataset.url, behind(dataset, gone), metadata_ttl="1s").crawled()
    small = [name for name in dataset.objects if name.startswith("train/")]
    cases = {
        small[0]: (Fault("flip", "GET", small[0], after=5), errno.EIO),
        small[1]: (Fault("close", "GET", small[1], after=100_000), errno.EIO),
        small[2]: (Fault("status", "GET", small[2], status=500, code="InternalError"), errno.EIO),
        small[3]: (Fault("reset", "GET", small[3]), errno.EIO),
        small[4]: (Fault("stall", "GET", small[4], after=1000), errno.ETIMEDOUT),
        "large/0.bin": (Fault("close", "GET", "large/0.bin", after=1000), errno.EIO),
    }
    once = small[5]  # silence for one request only: READ_TIMEOUT, then another
    between.add(Fault("stall", "GET", once, after=1000, times=1))
    for fault, _ in cases.values():
        between.add(fault)
    with ThreadPoolExecutor(16) as pool:
        lasting = {name: pool.submit(timed, errno_of_read, mounted.path / name) for name in cases}
        passing = pool.submit(timed, check, mounted.path / once, dataset.objects[once])
        undisturbed = {n: d for n, d in dataset.objects.items() if n not in cases and n != once}
        began = time.monotonic()
        read_all(mounted.path, undisturbed)
        assert time.monotonic() - began < MARGIN, "readers of sound objects waited for the others"
        a_server_that_is_down(dataset, gone, other)
        assert passing.result()[1] < 10 + MARGIN
        for name, (_, expected) in cases.items():
            found, seconds = lasting[name].result()
            assert (found, seconds < DEADLINE + MARGIN) == (expected, True), f"{name}: {seconds:.1f} s"
    assert mounted.count("cache_objects") <= len(undisturbed) + 1
    between.clear()
    large, size = mounted.path / "large/0.bin", len(dataset.objects["large/0.bin"])
    wait_until(  # a chunk's failure holds for a second
        lambda: not any(errno_of_read(large, at) for at in range(0, size, CHUNK)), "it to be forgotten", 5
    )
    for name in cases:
        check(mounted.path / name, dataset.objects[name])


def test_wrong_credentials_of_a_known_tree_are_told(dataset: Dataset, mount: MountFactory) -> None:
    """A known tree is mounted without asking; the first request that is refused shows in log and status."""
    mounted = mount(dataset.url, dataset.server).crawled()
    small, large = "train/00/000.bin", "large/0.bin"
    mounted.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
    mounted.remount()
    assert mounted.status()["source_error"] is None
    for name in (small, large):
        assert errno_of_read(mounted.path / name) == errno.EACCES
        assert "SignatureDoesNotMatch" in mounted.status()["source_error"]
    assert "FAILING: s3://" in mounted.command("status", str(mounted.path)).stdout
    assert "the source fails, only what is on this host can be read" in mounted.log()
    mounted.env |= dataset.server.env()
    mounted.remount()
    check(mounted.path / small, dataset.objects[small])
    assert mounted.status()["source_error"] is None


def test_missing_credentials_of_a_known_tree_are_told_at_the_mount(
    dataset: Dataset, mount: MountFactory
) -> None:
    """Looking for them asks nothing of the source."""
    mounted = mount(dataset.url, dataset.server).crawled()
    mounted.umount()
    for name in dataset.server.env():
        mounted.env.pop(name, None)
    mounted.env |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    mounted.mount()
    wait_until(lambda: "nothing can be fetched: no AWS credentials found" in mounted.log(), "the warning")


def test_a_source_that_fails_for_a_while(dataset: Dataset, proxy: ProxyFactory, mount: MountFactory) -> None:
    """The status tells it until a request succeeds; an answer that a reader does not like is a success."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, behind(dataset, between)).crawled()
    names = [name for name in dataset.objects if name.startswith("train/")]
    between.add(Fault("status", "GET", names[0], status=403, code="AccessDenied"))
    between.add(Fault("status", "GET", names[1], status=403, code="InvalidObjectState"))
    assert errno_of_read(mounted.path / names[0]) == errno.EACCES
    assert "access denied" in mounted.status()["source_error"]
    assert errno_of_read(mounted.path / names[1]) == errno.EACCES
    assert mounted.status()["source_error"] is None
    assert "the source answers again" in mounted.log()


def a_server_that_is_down(dataset: Dataset, proxy: FaultProxy, mounted: Mounted) -> None:
    """What is cached still reads, known directories still list, the rest is an error in time; it heals."""
    names = list(dataset.objects)
    cached = {name: dataset.objects[name] for name in names[:8]}
    uncached = names[20]
    read_all(mounted.path, cached)
    drop_pages(mounted.path, cached)
    proxy.refuse()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(timed, errno_of_read, mounted.path / uncached)
        wait_until(
            lambda: listed(mounted.path) == set(names) and mounted.count("stale_served"), "an old listing"
        )
        began = time.monotonic()
        read_all(mounted.path, cached)
        assert listed(mounted.path) == set(names)
        assert not (mounted.path / "no such file").exists()
        assert time.monotonic() - began < MARGIN
        found, seconds = waiting.result()
    assert found in (errno.EIO, errno.ETIMEDOUT) and seconds < DEADLINE + MARGIN
    proxy.listen()
    read_all(mounted.path, dataset.objects)
    proxy.forget()
    wait_until(lambda: listed(mounted.path) == set(names) and proxy.seen("LIST"), "a new listing")


def listed(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.bin")}


def timed(work: Callable[..., object], *args: object) -> tuple[object, float]:
    began = time.monotonic()
    return work(*args), time.monotonic() - began
