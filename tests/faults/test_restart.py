"""A crash behind a mount, or an upgrade of gpufs, is a pause for those who read, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import gpufs
from tests.faults.conftest import Dataset
from tests.faults.crashes import Held, crash, evict, reading
from tests.faults.data import check, read_all
from tests.mounts import Mounted, MountFactory, ask, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint

pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

LONGEST_PAUSE = 3.0  # seconds
COLD = ["train/04", "train/05", "train/06", "train/07", "large/2.bin"]  # half of the bytes


@pytest.mark.alone
def test_kill_at_random_moments(dataset: Dataset, mount: MountFactory, tmp_path: Path) -> None:
    """kill -9 of the fast path, the filesystem process or both: no error, no wrong byte, no leak."""
    mounted = mount(dataset.url, dataset.server).crawled()
    mounted.may_log_errors = True
    read_all(mounted.path, dataset.objects)
    load = crash(mounted, dataset.objects, COLD, tmp_path, random.Random(1), 12)
    assert load.longest < LONGEST_PAUSE, f"{load.what} took {load.longest:.1f} s"


def installed(mounted: Mounted, work: Path) -> Path:
    """A copy of the package, which the daemon of `mounted` will run when it is mounted."""
    package = work / "lib" / "gpufs"
    shutil.copytree(
        Path(gpufs.__file__).parent, package, ignore=lambda _, names: {"__pycache__"} & set(names)
    )
    mounted.env["PYTHONPATH"] = str(package.parent)
    return package


def upgrade(package: Path, version: str) -> None:
    # Compiled code is trusted by the second of its source and its size, which do not differ here.
    shutil.rmtree(package / "__pycache__", ignore_errors=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')


@pytest.mark.alone
def test_restart_in_place_under_load(dataset: Dataset, mount: MountFactory, tmp_path: Path) -> None:
    """`gpufs restart` runs the code that is installed now; no reader meets an error, nothing leaks."""
    mounted = mount(dataset.url, dataset.server, start=False)
    package = installed(mounted, tmp_path)
    mounted.mount().crawled()
    read_all(mounted.path, dataset.objects)
    held = Held(mounted)
    with reading(mounted, dataset.objects, tmp_path) as load:
        for number in range(10):
            version = f"7.{number}"
            upgrade(package, version)
            evict(mounted, COLD)
            before = ask(mounted, "status")
            done = mounted.command("restart", str(mounted.path))
            assert done.returncode == 0, done.stderr
            assert f"runs gpufs {version} (before: " in done.stdout and done.stdout.count("\n") == 1
            status = ask(mounted, "status")
            assert status["version"] == version and status["supervisor"] == held.supervisor
            assert not {*before["pids"][:3]} & {*status["pids"]}
    assert not load.errors
    print(f"10 restarts, {load.calls} calls, the longest {load.longest:.2f} s: {load.what}")
    assert load.longest < LONGEST_PAUSE, f"{load.what} took {load.longest:.1f} s"
    held.assert_same()
    assert mounted.log().count("restarting in place") == 10, "the log goes on"


def test_new_code_that_does_not_start_is_not_used(
    dataset: Dataset, mount: MountFactory, tmp_path: Path
) -> None:
    """A broken upgrade leaves the old processes at work; log and command say what is wrong with it."""
    mounted = mount(dataset.url, dataset.server, start=False)
    mounted.may_log_errors = True
    package = installed(mounted, tmp_path)
    mounted.mount().crawled()
    before = mounted.pids()
    (package / "fastpath" / "loop.py").write_text("import no_such_module_here\n")
    os.kill(before[-1], signal.SIGHUP)
    wait_until(lambda: "cannot take over: ModuleNotFoundError" in mounted.log(), "the refusal")
    (package / "fastpath" / "loop.py").write_text("import another_missing_module\n")
    began = time.monotonic()
    done = mounted.command("restart", str(mounted.path))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "cannot take over: ModuleNotFoundError: No module named 'another_missing_module'" in done.stderr
    assert time.monotonic() - began < 15
    assert mounted.pids() == before
    read_all(mounted.path, dataset.objects)


def test_a_filesystem_process_that_hangs_is_replaced(
    dataset: Dataset, mount: MountFactory, tmp_path: Path
) -> None:
    """Who waited for it gets the right bytes; the log says what happened."""
    mounted = mount(dataset.url, dataset.server, start=False)
    mounted.may_log_errors = True
    package = installed(mounted, tmp_path)
    # A signal makes it hang, and the watchdog asks more often.
    with (package / "service.py").open("r+") as service:
        text = service.read().replace(
            "def main() -> int:\n",
            "def main() -> int:\n    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(10**6))\n",
        )
        service.seek(0)
        service.write(text)
    with (package / "watchdog.py").open("a") as watchdog:
        watchdog.write("\nEVERY, PATIENCE, MISSES = 0.1, 0.5, 3\n")
    mounted.mount().crawled()
    before = mounted.pids()
    os.kill(before[0], signal.SIGUSR1)
    read_all(mounted.path, dataset.objects)
    after = mounted.pids()
    assert after[-1] == before[-1] and not {*before[:-1]} & {*after}
    assert "has given no answer for a long time: killed" in mounted.log()


@pytest.mark.alone
def test_what_the_old_process_was_fetching_is_answered_by_the_new_one(
    dataset: Dataset, mount: MountFactory, proxy: Callable[[S3Endpoint], FaultProxy]
) -> None:
    """Requests under way are sent again: their readers get their bytes, soon."""
    between = proxy(dataset.server)
    mounted = mount(dataset.url, replace(dataset.server, url=between.url)).crawled()
    names = [*list(dataset.objects)[:6], "large/0.bin"]
    between.add(Fault("stall", "GET", after=1000))
    with ThreadPoolExecutor(len(names)) as pool:
        reads = [pool.submit(check, mounted.path / name, dataset.objects[name]) for name in names]
        wait_until(lambda: len(between.seen("GET")) >= len(names), "all reads to wait")
        between.clear()
        began = time.monotonic()
        done = mounted.command("restart", str(mounted.path))
        assert done.returncode == 0, done.stderr
        for read in reads:
            read.result(10)
        print(f"{time.monotonic() - began:.1f} s, {done.stdout}")
        assert time.monotonic() - began < 8


def test_without_a_fast_path_there_is_nothing_to_restart(dataset: Dataset, mount: MountFactory) -> None:
    mounted = mount(dataset.url, dataset.server, fast_path="off")
    done = mounted.command("restart", str(mounted.path))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "fast_path=off" in done.stderr and "unmount and mount" in done.stderr
