"""How a mount with a supervisor ends: told to, given up, or one of its processes gone or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.crashes import children, kill
from tests.faults.data import check, drop_pages, errno_of_read, read_all
from tests.mounts import GPUFS, Mounted, MountFactory, alive, ask, daemons_of, is_mounted, wait_until

pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

HELD = "large/1.bin"


def gone(mounted: Mounted) -> bool:
    return not is_mounted(mounted.path) and not daemons_of(mounted.path)


@contextmanager
def held_open(path: Path) -> Iterator[int]:
    """A descriptor of a file whose mount may end meanwhile."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_unmounts(dataset: Dataset, mount: MountFactory, number: signal.Signals) -> None:
    mounted = mount(dataset.url, dataset.server)
    os.kill(mounted.pids()[-1], number)
    wait_until(lambda: gone(mounted), "the mount and its processes to end", 10)
    assert "msg=unmounted" in mounted.log()
    others = {line for line in mounted.log().splitlines() if "level=" not in line}
    assert not others, "libfuse complains of what was planned"
    assert "/sys/fs/fuse" not in mounted.log(), "settings that the fast path does not need"


def test_a_signal_while_the_tree_is_in_use(dataset: Dataset, mount: MountFactory) -> None:
    """It is detached at once and served on until the last user ends; the log says so."""
    mounted = mount(dataset.url, dataset.server)
    supervisor = mounted.pids()[-1]
    with open(mounted.path / HELD, "rb", 0) as file:
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not is_mounted(mounted.path), "the tree to be detached", 10)
        assert "is in use: detached, and served until the last user ends" in mounted.log()
        assert file.read() == dataset.objects[HELD], "who has it open reads on, also what was not cached"
        mounted.may_log_errors = True
        kill(supervisor, "filesystem")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        assert file.read() == dataset.objects[HELD], "and a crash is repaired all the same"
    wait_until(lambda: gone(mounted), "the end with the last user", 10)


def test_a_second_signal_ends_a_detached_tree_at_once(dataset: Dataset, mount: MountFactory) -> None:
    mounted = mount(dataset.url, dataset.server)
    supervisor = mounted.pids()[-1]
    with held_open(mounted.path / HELD) as fd:
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not is_mounted(mounted.path), "the tree to be detached", 10)
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: gone(mounted), "the end in spite of a user", 10)
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.read(fd, 1000)
    assert "lose it now" in mounted.log()


def test_umount_from_outside_ends_everything(dataset: Dataset, mount: MountFactory) -> None:
    mounted = mount(dataset.url, dataset.server)
    pids = mounted.pids()
    subprocess.run(["umount", mounted.path], check=True)
    wait_until(lambda: not any(map(alive, pids)), "all processes to end", 10)
    assert gone(mounted)


def test_umount_while_the_processes_are_being_restarted(dataset: Dataset, mount: MountFactory) -> None:
    mounted = mount(dataset.url, dataset.server)
    mounted.may_log_errors = True
    supervisor = mounted.pids()[-1]
    for name in ("filesystem", "fastpath"):
        kill(supervisor, name)
        subprocess.run(["umount", mounted.path], check=True)
        wait_until(lambda: gone(mounted), "everything to end", 10)
        supervisor = mounted.mount().pids()[-1]


def test_without_its_supervisor_a_mount_goes_on(dataset: Dataset, mount: MountFactory) -> None:
    """kill -9 of the supervisor alone: read on, shown in the status, unmounted as any other."""
    mounted = mount(dataset.url, dataset.server)
    pids = mounted.pids()
    os.kill(pids[-1], signal.SIGKILL)
    wait_until(lambda: not alive(pids[-1]), "the supervisor to end")
    read_all(mounted.path, dataset.objects)
    status = mounted.status()
    assert (status["supervisor"], status["pids"]) == (0, pids[:3])
    assert "no supervisor" in mounted.command("status", str(mounted.path)).stdout
    done = mounted.command("restart", str(mounted.path))
    assert done.returncode == 1 and "supervisor" in done.stderr and done.stderr.count("\n") == 1
    mounted.umount()
    wait_until(lambda: gone(mounted), "the other two to end", 10)


@pytest.mark.alone
def test_a_stopped_filesystem_process_is_not_restarted(dataset: Dataset, mount: MountFactory) -> None:
    """kill -STOP for 5 seconds: what is cached is read as if nothing were."""
    mounted = mount(dataset.url, dataset.server).crawled()
    read_all(mounted.path, dataset.objects)
    pids = mounted.pids()
    awake = threading.Timer(30, os.kill, (pids[0], signal.SIGCONT))  # or a mistake would never end
    awake.start()
    os.kill(pids[0], signal.SIGSTOP)
    try:
        end, longest = time.monotonic() + 5, 0.0
        while time.monotonic() < end:
            drop_pages(mounted.path, dataset.objects)
            for name, data in dataset.objects.items():
                began = time.monotonic()
                check(mounted.path / name, data)
                longest = max(longest, time.monotonic() - began)
    finally:
        awake.cancel()
        os.kill(pids[0], signal.SIGCONT)
    assert longest < 1
    assert mounted.pids() == pids
    read_all(mounted.path, dataset.objects)


def test_a_crash_loop_ends_in_a_clean_unmount(dataset: Dataset, mount: MountFactory) -> None:
    """When the processes cannot start again: bounded, said in the log, and nothing is left."""
    mounted = mount(dataset.url, dataset.server)
    mounted.may_log_errors = True
    supervisor = mounted.pids()[-1]
    mounted.cache.rename(mounted.cache.with_name("aside"))
    mounted.cache.write_text("a file where the cache was")
    began = time.monotonic()
    with held_open(mounted.path / HELD) as fd:
        kill(supervisor, "filesystem")
        wait_until(lambda: gone(mounted), "the end of the crash loop", 40)
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.read(fd, 1000)
    print(f"gave up after {time.monotonic() - began:.1f} s")
    log = mounted.log()
    assert f"giving up and unmounting {mounted.path}" in log
    assert "cannot start anew: cache directory" in log
    assert "Traceback" not in log
    assert log.count("cannot start anew") < 10
    assert errno_of_read(mounted.path / HELD) == 2, "an empty mount point"
    mounted.cache.unlink()
    mounted.cache.with_name("aside").rename(mounted.cache)
    mounted.mount()
    read_all(mounted.path, dataset.objects)


def test_what_keeps_it_from_starting_may_pass(dataset: Dataset, mount: MountFactory) -> None:
    """A cache directory that comes back in time: the readers never knew."""
    mounted = mount(dataset.url, dataset.server)
    mounted.may_log_errors = True
    supervisor = mounted.pids()[-1]
    with open(mounted.path / HELD, "rb", 0) as file:
        mounted.cache.rename(mounted.cache.with_name("aside"))
        mounted.cache.write_text("a file where the cache was")
        kill(supervisor, "fastpath")
        wait_until(lambda: "cannot start anew" in mounted.log(), "a start that fails")
        mounted.cache.unlink()
        mounted.cache.with_name("aside").rename(mounted.cache)
        assert file.read() == dataset.objects[HELD]
    read_all(mounted.path, dataset.objects)


@pytest.mark.alone
def test_crashes_far_apart_are_no_loop(dataset: Dataset, mount: MountFactory) -> None:
    """Each of them after a life of more than a second; ten of them, and no wait grows."""
    mounted = mount(dataset.url, dataset.server)
    mounted.may_log_errors = True
    supervisor = mounted.pids()[-1]
    for _ in range(10):
        wait_until(lambda: len(children(supervisor)) == 2, "both processes to run")
        threading.Event().wait(1.2)  # the length of a life is what is tested
        began = time.monotonic()
        kill(supervisor, "fastpath")
        check(mounted.path / HELD, dataset.objects[HELD])
        assert time.monotonic() - began < 3
        evicted = ask(mounted, "evict", path=HELD)
        assert evicted["files"] <= 1
    assert "giving up" not in mounted.log()


def test_a_signal_while_the_mount_begins(dataset: Dataset, mount: MountFactory) -> None:
    """Nothing is left, whatever the moment; the log has no traceback."""
    mounted = mount(dataset.url, dataset.server, start=False)
    for after in (0.1, 0.3, 0.5, 0.8):
        command = [*GPUFS, "mount", mounted.source, str(mounted.path), "-o", mounted.option_text()]
        with subprocess.Popen(command, env=mounted.env, stderr=subprocess.PIPE) as mounting:
            threading.Event().wait(after)
            mounting.send_signal(signal.SIGINT)
            mounting.communicate(timeout=30)
        if is_mounted(mounted.path):
            mounted.umount()
        wait_until(lambda: gone(mounted), "nothing to be left", 10)
    assert "Traceback" not in mounted.log()


def test_a_process_that_hangs_can_be_restarted(dataset: Dataset, mount: MountFactory) -> None:
    """A filesystem process that stands still answers no status; it is replaced all the same."""
    mounted = mount(dataset.url, dataset.server).crawled()
    filesystem, *_, supervisor = mounted.pids()
    os.kill(filesystem, signal.SIGSTOP)
    done = mounted.command("restart", str(mounted.path))
    assert done.returncode == 0, done.stderr
    assert not alive(filesystem) and mounted.pids()[-1] == supervisor
    read_all(mounted.path, dataset.objects)
