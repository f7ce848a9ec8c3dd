"""Readers that die, and mounts that end while they are in use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import md5
from pathlib import Path

from gpufs.control.paths import socket_path
from tests.faults.conftest import Dataset
from tests.faults.data import check, errno_of_read, in_parallel, read_all
from tests.mounts import MountFactory, alive, daemons_of, is_mounted, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint

ProxyFactory = Callable[[S3Endpoint], FaultProxy]

# Argument: JSON of {path: md5} and the path of the last, the victim's. 64 workers are forked as a
# DataLoader forks them; each reads all files in an order of its own, the victim only the last one.
WORKERS = """
import hashlib, json, os, random, sys
expected, held = json.loads(sys.argv[1]), sys.argv[2]
children = {}
for number in range(64):
    pid = os.fork()
    if not pid:
        paths = [held] if number == 63 else random.Random(number).sample(sorted(expected), len(expected))
        good = all(hashlib.md5(open(p, "rb").read()).hexdigest() == expected.get(p) for p in paths)
        os._exit(0 if good else 1)
    children[pid] = number
victim = pid
print(victim, flush=True)
failed = [number for pid, number in children.items() if pid != victim and os.waitpid(pid, 0)[1]]
print(json.dumps(failed), flush=True)
print(os.waitpid(victim, 0)[1], flush=True)
"""


def test_one_of_64_workers_is_killed_in_the_middle_of_a_read(
    dataset: Dataset, proxy: ProxyFactory, mount: MountFactory
) -> None:
    """Case 18: nobody else notices, and the file it was reading is none the worse."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, replace(dataset.server, url=between.url)).crawled()
    names = list(dataset.objects)[:24]
    held = names.pop()
    expected = {str(mounted.path / n): md5(dataset.objects[n]).hexdigest() for n in names}
    between.add(Fault("stall", "GET", held, after=1000))
    with subprocess.Popen(
        [sys.executable, "-c", WORKERS, json.dumps(expected), str(mounted.path / held)],
        stdout=subprocess.PIPE,
        text=True,
    ) as workers:
        try:
            assert workers.stdout is not None
            victim = int(workers.stdout.readline())
            wait_until(lambda: any(held in seen.target for seen in between.seen("GET")), "the victim to read")
            os.kill(victim, signal.SIGKILL)
            assert json.loads(workers.stdout.readline()) == [], "workers that noticed"
            between.clear()
            assert int(workers.stdout.readline()) == signal.SIGKILL
        finally:
            workers.kill()
    check(mounted.path / held, dataset.objects[held])
    read_all(mounted.path, dataset.objects)


def test_sigterm_while_reads_are_in_flight(
    dataset: Dataset, proxy: ProxyFactory, mount: MountFactory, fast_path: str
) -> None:
    """As systemd ends it: soon unmounted, no process left, readers get an error and do not hang."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, replace(dataset.server, url=between.url)).crawled()
    names = list(dataset.objects)
    kept = {name: dataset.objects[name] for name in names[:20]}
    read_all(mounted.path, kept)
    daemon = mounted.pids()[0 if fast_path == "off" else -1]  # the one that systemd would know
    between.forget()
    between.add(Fault("stall", "GET", after=1000))
    stalled = [*names[30:38], "large/0.bin"]
    with ThreadPoolExecutor(len(stalled)) as pool:
        reads = [pool.submit(errno_of_read, mounted.path / name) for name in stalled]
        wait_until(lambda: len(between.seen("GET")) >= len(stalled), "all reads to wait")
        began = time.monotonic()
        os.kill(daemon, signal.SIGTERM)
        if fast_path != "off":  # a supervisor serves those who still read, until it is told once more
            wait_until(lambda: not is_mounted(mounted.path), "the tree to be detached", 20)
            os.kill(daemon, signal.SIGTERM)
        assert all(read.result() for read in reads)
        wait_until(lambda: not is_mounted(mounted.path), "the end of the mount", 20)
        wait_until(lambda: not alive(daemon) and not daemons_of(mounted.path), "the daemon to end", 20)
        assert time.monotonic() - began < 20
    assert not list(mounted.path.iterdir())
    assert "panicked" not in mounted.log()
    between.clear()
    mounted.mount()
    read_all(mounted.path, dataset.objects)
    wait_until(lambda: mounted.count("hits") >= len(kept), "the hits of what has survived")


def test_umount_says_that_the_tree_is_in_use(dataset: Dataset, mount: MountFactory) -> None:
    """The mount goes on, and can be unmounted when the last reader has gone; lazily at once."""
    mounted = mount(dataset.url, dataset.server)
    name = "large/1.bin"
    with open(mounted.path / name, "rb", 0) as file:
        done = mounted.command("umount", str(mounted.path))
        assert done.returncode == 1 and "in use" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert str(mounted.path) in done.stderr
        assert file.read(100_000) == dataset.objects[name][:100_000]
        check(mounted.path / name, dataset.objects[name])
    mounted.umount()
    assert not is_mounted(mounted.path) and not daemons_of(mounted.path)
    mounted.mount()
    with open(mounted.path / name, "rb", 0) as file:
        done = mounted.command("umount", "--lazy", str(mounted.path))
        assert done.returncode == 0, done.stderr
        assert not is_mounted(mounted.path)
        assert file.read() == dataset.objects[name], "who has a file open reads on"
    wait_until(lambda: not daemons_of(mounted.path), "the daemon to end with its last reader")


def test_umount_while_new_readers_keep_coming(dataset: Dataset, mount: MountFactory) -> None:
    """Whoever comes in time gets right bytes, whoever comes late finds nothing; no third thing."""
    mounted = mount(dataset.url, dataset.server).crawled()
    late: list[str] = []

    def read(name: str) -> None:
        path = Path(mounted.path, name)
        try:
            check(path, dataset.objects[name])
        except OSError as error:
            late.append(f"{name}: {error.strerror}")

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(in_parallel, read, [*dataset.objects] * 3, 8)
        wait_until(
            lambda: mounted.command("umount", str(mounted.path)).returncode == 0, "a moment without readers"
        )
        reading.result()
    assert not is_mounted(mounted.path) and not daemons_of(mounted.path)
    assert set(line.split(": ")[1] for line in late) <= {"No such file or directory"}


def test_after_each_umount_all_is_put_away(dataset: Dataset, mount: MountFactory) -> None:
    """The processes end by themselves, in order: no control socket is left, and the cache is marked clean."""
    mounted = mount(dataset.url, dataset.server, start=False)
    for _ in range(8):  # it is a matter of milliseconds who is told what first
        pids = mounted.mount().pids()
        mounted.umount()
        wait_until(lambda pids=pids: not any(map(alive, pids)), "the processes to end", 10)
        assert not os.path.exists(socket_path(str(mounted.path), os.geteuid()))
        state = json.loads((mounted.cache / "state").read_bytes())
        assert state["clean"] and state["catalogued"]
