"""For crash tests: readers that verify everything and time every call, and what a mount holds."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gpufs.errors import GpufsError
from gpufs.fastpath import wire
from gpufs.fastpath.opens import OpenTable
from tests.mounts import Mounted, alive, ask, daemons_of, wait_until

READERS = 8
_SYS_PIDFD_GETFD = 438

# Argument: a file with JSON of root and {name: [size, md5]}. Forks the readers; ends with its input, and
# prints one line of JSON for each.
SCRIPT = """
import hashlib, json, mmap, os, random, signal, sys, time
root, files = json.load(open(sys.argv[1]))
names = sorted(files)
stopped = []

def check(name, data):
    assert len(data) == files[name][0], f"{name}: {len(data)} bytes instead of {files[name][0]}"
    assert hashlib.md5(data).hexdigest() == files[name][1], f"wrong bytes in {name}"

longest = [0.0, ""]

def timed(call, *arguments):
    began = time.monotonic()
    try:
        return call(*arguments)
    finally:
        if time.monotonic() - began > longest[0]:
            longest[:] = time.monotonic() - began, f"{call.__name__} until {time.strftime('%T')}"

def contents(fd):
    pieces = [b""]
    while piece := timed(os.pread, fd, 1 << 20, sum(map(len, pieces))):
        pieces.append(piece)
    return b"".join(pieces)

def whole(chance):
    name = chance.choice(names)
    fd = timed(os.open, f"{root}/{name}", os.O_RDONLY)
    try:
        check(name, contents(fd))
        if chance.random() < 0.5:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        timed(os.close, fd)

def mapped(chance):
    name = chance.choice(names)
    with timed(open, f"{root}/{name}", "rb", 0) as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with memory:
        slices = [slice(at, at + (1 << 18)) for at in range(0, len(memory), 1 << 18)]
        check(name, b"".join(timed(memory.__getitem__, each) for each in slices))

def names_of(chance):
    directory = os.path.dirname(chance.choice(names))
    expected = {n.rpartition("/")[2] for n in names if os.path.dirname(n) == directory}
    assert set(timed(os.listdir, f"{root}/{directory}")) == expected, directory
    name = chance.choice(names)
    assert timed(os.stat, f"{root}/{name}").st_size == files[name][0], name

held = {}

def hold(chance):
    name = chance.choice(names)
    if len(held) == 6:
        os.close(held.pop(chance.choice(sorted(held))))
    if name not in held:
        held[name] = timed(os.open, f"{root}/{name}", os.O_RDONLY)
    check(name, contents(held[name]))

def read(seed):
    chance, calls, errors = random.Random(seed), 0, []
    while not stopped:
        step = chance.choice((whole, whole, whole, mapped, names_of, hold))
        try:
            step(chance)
        except Exception as error:
            errors.append(f"{step.__name__}: {error!r}")
            if len(errors) > 20:
                break
        calls += 1
    for fd in held.values():
        os.close(fd)
    told = {"calls": calls, "longest": longest[0], "what": longest[1], "errors": errors[:5]}
    os.write(1, json.dumps(told).encode() + b"\\n")
    os._exit(0)

children = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for seed in range(int(sys.argv[2])):
    children.append(os.fork())
    if not children[-1]:
        read(seed)
sys.stdin.read()
for pid in children:
    os.kill(pid, signal.SIGTERM)
for pid in children:
    os.waitpid(pid, 0)
"""


class Load:
    """What the readers of one `reading()` have met; complete after it."""

    def __init__(self) -> None:
        self.calls = 0
        self.longest = 0.0
        self.what = ""
        self.errors: list[str] = []


@contextmanager
def reading(mounted: Mounted, objects: dict[str, bytes], work: Path) -> Iterator[Load]:
    """READERS processes read and verify, for as long as this lasts."""
    plan = work / "plan.json"
    plan.write_text(
        json.dumps(
            [
                str(mounted.path),
                {n: [len(data), hashlib.md5(data).hexdigest()] for n, data in objects.items()},
            ]
        )
    )
    load = Load()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(plan), str(READERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as readers:
        try:
            yield load
            lines = readers.communicate("", timeout=60)[0].splitlines()
        finally:
            if readers.poll() is None:
                readers.kill()
    for line in lines:
        told = json.loads(line)
        load.calls += told["calls"]
        load.errors += told["errors"]
        if told["longest"] > load.longest:
            load.longest, load.what = told["longest"], told["what"]
    assert len(lines) == READERS, f"readers that did not report: {READERS - len(lines)}"


def moment(chance: random.Random, least: float, most: float) -> None:
    """Let a random time pass: the moment is what is tested."""
    threading.Event().wait(chance.uniform(least, most))


def evict(mounted: Mounted, directories: Iterable[str]) -> None:
    """As `gpufs evict` does, by a daemon that may just have been killed."""
    for path in directories:
        with suppress(GpufsError):
            ask(mounted, "evict", path=path)


def children(supervisor: int) -> dict[str, int]:
    """The pids of the two processes that run now, or are being started, by their names."""
    found = {}
    for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for name, module in (("filesystem", b"gpufs.service"), ("fastpath", b"gpufs.fastpath.process")):
                if module in command and alive(pid):
                    found[name] = pid
    return found


def kill(supervisor: int, *names: str) -> None:
    for name, pid in children(supervisor).items():
        if name in names:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descriptors(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}").split("[")[0])
    return sorted(found)


def memory(pid: int) -> int:
    """The private memory of a process in bytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(
        int(line.split()[1]) << 10
        for line in text.splitlines()
        if line.startswith(("Private_D", "Private_C"))
    )


def assert_nothing_is_left_open(supervisor: int) -> None:
    """After all files are closed: no inode is in the table, and the kernel knows no backing id."""
    table = find_descriptor(supervisor, "/memfd:gpufs-opens")
    wait_until(lambda: not entries(supervisor, table), "the table of open files to be empty", 20)
    pidfd = os.pidfd_open(supervisor)
    device = find_descriptor(supervisor, "/dev/fuse")
    ours = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_GETFD, pidfd, device, 0)
    os.close(pidfd)
    assert ours >= 0, os.strerror(ctypes.get_errno())
    try:
        left = [number for number in range(1, 5000) if close_backing(ours, number)]
    finally:
        os.close(ours)
    assert not left, f"backing ids that nobody has closed: {left}"


def entries(pid: int, fd: int) -> int:
    copy = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return len(OpenTable(copy))
    finally:
        os.close(copy)


def find_descriptor(pid: int, name: str) -> int:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(name):
            return int(fd)
    raise AssertionError(f"process {pid} has no {name}")


def close_backing(device: int, number: int) -> bool:
    """Close a backing id; False when the kernel does not know it."""
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_uint32(number)
    if libc.ioctl(device, ctypes.c_ulong(wire.BACKING_CLOSE), ctypes.byref(argument)) == 0:
        return True
    assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return False


class Held:
    """What a mount holds before a test; `assert_same` after it."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self.supervisor = mounted.pids()[-1]
        self._descriptors = descriptors(self.supervisor)
        self._memory = memory(self.supervisor)

    def assert_same(self) -> None:
        """No descriptor, memory, process or open file more than before."""
        assert self._mounted.pids()[-1] == self.supervisor
        assert descriptors(self.supervisor) == self._descriptors
        grown = memory(self.supervisor) - self._memory
        assert grown < 4 << 20, f"the supervisor has {grown >> 10} KiB more than at its start"
        assert sorted(daemons_of(self._mounted.path)) == sorted(self._mounted.pids())
        assert_nothing_is_left_open(self.supervisor)


VICTIMS = [("filesystem",), ("fastpath",), ("filesystem", "fastpath")]


def _run_anew(supervisor: int, killed: set[int]) -> bool:
    """Both processes run, and they are others."""
    pids = {*children(supervisor).values()}
    return len(pids) == 2 and not pids & killed


def crash(
    mounted: Mounted,
    objects: dict[str, bytes],
    cold: list[str],
    work: Path,
    chance: random.Random,
    kills: int,
) -> Load:
    """kill -9 at random moments under load, `cold` being evicted again and again."""
    held = Held(mounted)
    with reading(mounted, objects, work) as load:
        for number in range(kills):
            evict(mounted, cold)
            moment(chance, 0.0, 1.5)
            killed = {*children(held.supervisor).values()}
            kill(held.supervisor, *VICTIMS[number % 3])
            moment(chance, 1.5, 2.0)  # a call that meets two kills has two pauses
            wait_until(partial(_run_anew, held.supervisor, killed), "both processes to run again")
    assert not load.errors
    print(
        f"{kills} kills, {load.calls} files, the longest call {load.longest:.2f} s: {load.what}", flush=True
    )
    held.assert_same()
    return load
