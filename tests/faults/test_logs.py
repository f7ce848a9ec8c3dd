"""The log of a real mount: what an operator needs of an event is there, in either form."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufs.logs import message_of
from tests.faults.conftest import Dataset
from tests.faults.data import check, errno_of_read
from tests.faults.test_remote import ProxyFactory, behind
from tests.mounts import MountFactory, wait_until
from tests.servers import Fault


def test_a_server_that_is_gone_is_told_within_10_seconds(
    dataset: Dataset, proxy: ProxyFactory, mount: MountFactory
) -> None:
    """Not only at the deadline of a request, a minute later; and when it is back."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, behind(dataset, between)).crawled()
    small, large = "train/00/000.bin", "large/0.bin"
    between.refuse()
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(check, mounted.path / name, dataset.objects[name]) for name in (small, large)]
        for name in (small, large):
            wait_until(lambda n=name: f"{n} fails since" in mounted.log(), "a line about it", 10)
        between.listen()
        for read in reads:
            read.result()
    assert "cannot connect" in mounted.log() or "Connection refused" in mounted.log()
    wait_until(lambda: mounted.log().count("it worked, after") >= 2, "what became of it")


@pytest.mark.parametrize("fast_path", ["auto"])
def test_the_life_of_a_mount_in_json(dataset: Dataset, proxy: ProxyFactory, mount: MountFactory) -> None:
    """Each line is an object; mounted, failing with the provider's request id, well again, unmounted."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, behind(dataset, between), log_format="json").crawled()
    name = "train/01/008.bin"
    between.add(Fault("status", "GET", name, status=403, code="AccessDenied"))
    assert errno_of_read(mounted.path / name) == errno.EACCES
    between.clear()
    check(mounted.path / name, dataset.objects[name])
    mounted.umount()
    lines = mounted.log().splitlines()
    documents = [json.loads(line) for line in lines]
    assert all(list(one)[:5] == ["time", "level", "logger", "pid", "msg"] for one in documents)
    said = [one["msg"] for one in documents]
    assert said == [message_of(line) for line in lines]
    assert (
        said[0].startswith(f"{dataset.url} is mounted on {mounted.path} (gpufs ") and said[-1] == "unmounted"
    )
    assert [one for one in documents if "request id FAULT1" in one["msg"] and one["level"] == "WARNING"]
    assert "the source answers again" in said


@pytest.mark.parametrize("fast_path", ["auto"])
def test_many_failures_are_few_lines(dataset: Dataset, proxy: ProxyFactory, mount: MountFactory) -> None:
    """64 files that cannot be read, each tried twice: the log has ten lines about them, and how many more."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, behind(dataset, between)).crawled()
    between.add(Fault("status", "GET", "train/", status=403, code="AccessDenied"))
    names = [name for name in dataset.objects if name.startswith("train/")]
    for name in names * 2:
        assert errno_of_read(mounted.path / name) == errno.EACCES
    mounted.umount()
    about = [line for line in mounted.log().splitlines() if 'msg="open:' in line]
    assert len(about) == 10, mounted.log()
    assert f"{2 * len(names) - 10} more like this" in mounted.log()
