"""A server that falls silent in the middle of a body, while all others of its answers are fine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpufs.cache import CHUNK
from gpufs.source.s3.signed import READ_TIMEOUT
from tests.faults.conftest import Dataset
from tests.faults.data import check, read_all
from tests.mounts import MountFactory, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint

MARGIN = 8.0  # seconds for a busy machine
SMALL, LARGE = "train/00/000.bin", "large/0.bin"  # by the fetch process; by the filesystem process in chunks


@pytest.mark.slow  # the time without a byte has to pass
@pytest.mark.fuse
def test_bodies_that_stall_for_ever_are_asked_for_again(
    dataset: Dataset, proxy: Callable[[S3Endpoint], FaultProxy], mount: MountFactory
) -> None:
    """Case 11: a stalled read is repeated and ends well in time; all others end while it still hangs.

    For a small object, and for a chunk of a large one of which others want the other chunks.
    """
    between = proxy(dataset.server)
    mounted = mount(dataset.url, replace(dataset.server, url=between.url)).crawled()
    others = {name: data for name, data in list(dataset.objects.items())[1:33] if name not in (SMALL, LARGE)}
    others["large/1.bin"] = dataset.objects["large/1.bin"]
    for name in (SMALL, LARGE):
        between.add(Fault("stall", "GET", name, times=1, after=100_000))
    retries = mounted.count("retries")

    def requests(name: str) -> list[str]:
        """What was asked for of an object: the ranges, "" for the whole."""
        return [seen.headers.get("range", "") for seen in between.seen("GET") if name in seen.target]

    def head_of_large() -> bytes:
        with (mounted.path / LARGE).open("rb", buffering=0) as file:
            return file.read(CHUNK // 8)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        stalled = [
            pool.submit(check, mounted.path / SMALL, dataset.objects[SMALL]),
            pool.submit(head_of_large),
        ]
        wait_until(lambda: requests(SMALL) and requests(LARGE), "both requests to have come", READ_TIMEOUT)
        read_all(mounted.path, others, readers=8)
        with (mounted.path / LARGE).open("rb") as file:
            for at in range(CHUNK, len(dataset.objects[LARGE]), CHUNK):
                piece = os.pread(file.fileno(), CHUNK // 8, at)
                assert piece == dataset.objects[LARGE][at : at + CHUNK // 8]
        assert not any(one.done() for one in stalled), "the others took as long as the stalled ones"
        stalled[0].result()
        assert stalled[1].result() == dataset.objects[LARGE][: CHUNK // 8]
    assert time.monotonic() - began < READ_TIMEOUT + MARGIN
    assert requests(SMALL) == ["", ""]
    assert requests(LARGE).count(f"bytes=0-{CHUNK - 1}") == 2
    assert mounted.count("retries") - retries == 2, "and nothing else had to be repeated"
