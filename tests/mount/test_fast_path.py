"""The fast path on real mounts: native reads, no mixing of modes, every way a program reads a file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gpufs.fastpath.negotiation import LARGEST_READ
from tests.faults.data import MIB, check, content, in_parallel, read_all
from tests.mounts import Mounted, MountFactory, detach, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.parametrize("fast_path", ["auto"])]

SIZE = 100_003


def write(folder: Path, data: dict[str, bytes]) -> dict[str, bytes]:
    for name, body in data.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return data


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes do nothing during the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def uncached(fd: int) -> bytes:
    """All of an open file, without what the kernel's page cache has of it."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))


def is_native(mounted: Mounted, path: Path, expected: bytes) -> bool:
    """Whether the file, opened now, is read without any process of ours."""
    daemons = mounted.pids()[:2]
    fd = os.open(path, os.O_RDONLY)
    found: list[bytes] = []
    try:
        reader = threading.Thread(target=lambda: found.append(uncached(fd)))
        with stopped(*daemons):
            reader.start()
            reader.join(5)
            native = not reader.is_alive()
        reader.join(30)
        assert found == [expected]
    finally:
        os.close(fd)
    return native


@contextmanager
def full_disk(work: Path) -> Iterator[Path]:
    """A tmpfs that has room for an index and for nothing else."""
    where = work / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M", "tmpfs", where], check=True)
    try:
        yield where
    finally:
        detach(where)


def test_small_files_are_native_from_the_first_read(mount: MountFactory, tmp_path: Path) -> None:
    """And those in the cache at any time. An empty file reads as empty."""
    data = write(tmp_path / "data", {f"d/{n}": content(f"{n}", SIZE + n) for n in range(3)} | {"empty": b""})
    mounted = mount(f"file://{tmp_path}/data")
    assert mounted.status()["passthrough"] is True
    for _ in range(2):
        for name in ("d/0", "d/1"):
            assert is_native(mounted, mounted.path / name, data[name]), name
    assert (mounted.path / "empty").read_bytes() == b""
    mounted.remount()
    assert is_native(mounted, mounted.path / "d/0", data["d/0"])
    assert mounted.command("evict", str(mounted.path / "d/0")).returncode == 0
    assert is_native(mounted, mounted.path / "d/0", data["d/0"])
    mounted.umount()


def test_small_files_are_native_when_the_cache_keeps_nothing(mount: MountFactory, tmp_path: Path) -> None:
    """A cache smaller than the file, and a disk that is full: read from a file without a name."""
    data = write(tmp_path / "data", {"a": content("a", 2 * MIB), "b": content("b", 2 * MIB)})
    mounted = mount(f"file://{tmp_path}/data", cache_size="1MiB")
    assert is_native(mounted, mounted.path / "a", data["a"])
    assert mounted.count("cache_objects") == 0
    mounted.umount()
    with full_disk(tmp_path) as disk:
        mounted = mount(f"file://{tmp_path}/data", cache_dir=f"{disk}/cache", min_free="1MiB")
        assert sorted(os.listdir(mounted.path)) == ["a", "b"]
        with open(disk / "filler", "wb") as filler, suppress(OSError):
            while filler.write(bytes(1 << 16)):
                filler.flush()
        assert is_native(mounted, mounted.path / "b", data["b"])
        check(mounted.path / "b", data["b"])
        mounted.umount()


@pytest.mark.alone
def test_readers_of_cached_files_do_not_notice_a_filesystem_process_that_stands_still(
    mount: MountFactory, tmp_path: Path
) -> None:
    """Opens, reads and stats for 3 s beside it: as many as before, each of them right."""
    data = write(tmp_path / "data", {f"{n}": content(f"{n}", SIZE) for n in range(50)})
    mounted = mount(f"file://{tmp_path}/data")
    read_all(mounted.path, data)
    filesystem = mounted.pids()[0]

    def count(seconds: float) -> int:
        end = time.monotonic() + seconds
        done = 0
        while time.monotonic() < end:
            name = f"{done % 50}"
            assert (mounted.path / name).stat().st_size == SIZE
            check(mounted.path / name, data[name])
            assert not (mounted.path / f"{name}.missing").exists()
            done += 1
        return done

    before = count(1.5)
    with stopped(filesystem), ThreadPoolExecutor(2) as pool:
        beside = sum(pool.map(count, [3.0, 3.0]))
    # Twice the time and two threads: far more, were it not for a machine that others use too.
    assert beside > before
    wait_until(lambda: mounted.count("opens") >= before + beside, "the feed to have told of all opens")
    mounted.umount()


def test_a_large_file_that_becomes_whole_while_it_is_open(mount: MountFactory, tmp_path: Path) -> None:
    """It stays readable for all who have it or open it meanwhile; once all have closed it, it is native."""
    data = write(tmp_path / "data", {"large": content("large", 9 * MIB + 5)})
    mounted = mount(f"file://{tmp_path}/data")
    path = mounted.path / "large"
    with path.open("rb", buffering=0) as first:
        assert first.read(1000) == data["large"][:1000]
        with path.open("rb") as second:
            assert second.read() == data["large"]
            wait_until(lambda: mounted.count("cache_objects") == 1, "the object to be whole")
            check(path, data["large"])
            with path.open("rb") as third:
                assert uncached(third.fileno()) == data["large"]
        assert b"".join(iter(lambda: first.read(MIB), b"")) == data["large"][1000:]
    assert is_native(mounted, path, data["large"])
    with path.open("rb") as native:  # and the other way round: evicted while open, opened again
        assert mounted.command("evict", str(path)).returncode == 0
        check(path, data["large"])
        assert uncached(native.fileno()) == data["large"]
    check(path, data["large"])
    mounted.umount()


def test_large_files_are_relayed_in_large_pieces(mount: MountFactory, tmp_path: Path) -> None:
    """Read-ahead of a file that is not whole asks for as much at a time as a reply may have."""
    data = write(tmp_path / "data", {"large": content("large", 24 * MIB)})
    mounted = mount(f"file://{tmp_path}/data")
    fast_path = mounted.pids()[1]

    def writes() -> int:
        lines = Path(f"/proc/{fast_path}/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("syscw")).split()[1])

    before = writes()
    check(mounted.path / "large", data["large"])
    # A reply for each; what the feed and the kernel's first steps take comes on top.
    assert writes() - before < 24 * MIB / LARGEST_READ + 100
    mounted.umount()


def test_every_way_of_reading(mount: MountFactory, tmp_path: Path) -> None:
    """mmap, sendfile, splice, copy_file_range, O_DIRECT, readv, a child's descriptors, overlayfs; exec."""
    body = content("body", 256 * 1024)
    script = b"#!/bin/sh\necho the script runs $1\n"
    program = Path(shutil.which("echo") or "/bin/echo").read_bytes()
    data = write(tmp_path / "data", {"body": body, "script": script, "program": program})
    mounted = mount(f"file://{tmp_path}/data", file_mode="0555")
    path = mounted.path / "body"
    fd = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert mapped[:] == body
        with mmap.mmap(fd, 8192, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=4096) as mapped:
            assert mapped[:] == body[4096:12288]
            mapped[0:4] = b"mine"
        assert os.pread(fd, 4, 4096) == body[4096:4100]
        assert os.preadv(fd, [a := bytearray(100), b := bytearray(5000)], 77) == 5100
        assert bytes(a + b) == body[77:5177]
        with (tmp_path / "sent").open("wb") as out:
            sent = 0
            while sent < len(body):
                sent += os.sendfile(out.fileno(), fd, sent, len(body) - sent)
        check(tmp_path / "sent", body)
        with (tmp_path / "copied").open("wb") as out:
            try:
                done = 0
                while done < len(body):
                    done += os.copy_file_range(fd, out.fileno(), len(body) - done, done, done)
                check(tmp_path / "copied", body)
            except OSError as error:
                assert error.errno == errno.EXDEV, "between file systems it may be refused, and only so"
        read_end, write_end = os.pipe()
        assert os.splice(fd, write_end, 50_000, offset_src=1000) > 0
        assert os.read(read_end, 4096) == body[1000:5096]
        os.close(read_end)
        os.close(write_end)
        assert os.lseek(fd, 0, os.SEEK_END) == len(body) and os.lseek(fd, 5, os.SEEK_SET) == 5
        child = os.fork()
        if child == 0:
            os._exit(0 if os.pread(fd, 1000, 500) == body[500:1500] and os.read(fd, 9) == body[5:14] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert os.read(fd, 9) == body[14:23], "the offset is shared with the child"
    finally:
        os.close(fd)
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 65536) as aligned:
            assert os.preadv(direct, [aligned], 65536) == 65536
            assert aligned[:] == body[65536:131072]
    finally:
        os.close(direct)
    subprocess.run(["cp", path, tmp_path / "cp"], check=True)
    check(tmp_path / "cp", body)

    def run(*command: str | Path) -> bytes:
        return subprocess.run(command, capture_output=True, check=True).stdout

    assert run(mounted.path / "script", "well") == b"the script runs well\n"
    assert run(mounted.path / "program", "hello") == b"hello\n"

    for name in ("upper", "work", "merged"):
        (tmp_path / name).mkdir()
    merged = tmp_path / "merged"
    layers = f"lowerdir={mounted.path},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=True)
    try:
        assert {p.name: p.read_bytes() for p in merged.iterdir()} == data
        assert run(merged / "program", "above") == b"above\n"
        (merged / "script").chmod(0o755)  # copied up
        with (merged / "script").open("ab") as file:
            file.write(b"echo twice\n")
        assert run(merged / "script", "x") == b"the script runs x\ntwice\n"
    finally:
        detach(merged)
    assert is_native(mounted, path, body)
    mounted.umount()


class Data:
    """Small and large files, and readers that open, read and close them at random."""

    def __init__(self, folder: Path) -> None:
        small = {f"s/{n}": content(f"s/{n}", 1000 + 7919 * n) for n in range(24)}
        large = {f"l/{n}": content(f"l/{n}", 4 * MIB + 1 + 2 * MIB * n) for n in range(3)}
        self.files = write(folder, small | large)

    def read(self, root: Path, seed: int, until: float) -> int:
        """Some files are open at any time, others are opened, read in part or whole, and closed."""
        pick = random.Random(seed)
        names = list(self.files)
        held: list[tuple[str, int]] = []
        rounds = 0
        try:
            while time.monotonic() < until:
                rounds += 1
                name = pick.choice(names)
                held.append((name, os.open(root / name, os.O_RDONLY)))
                for name, fd in (held[-1], pick.choice(held)):
                    offset = pick.randrange(len(self.files[name]))
                    if pick.random() < 0.3:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    size = pick.choice((1, 4096, 300_000))
                    expected = self.files[name][offset : offset + size]
                    assert os.pread(fd, size, offset) == expected, f"{name} at {offset}"
                while len(held) > pick.randrange(1, 5):
                    os.close(held.pop(pick.randrange(len(held)))[1])
        finally:
            for _, fd in held:
                os.close(fd)
        return rounds


def remove_objects(mounted: Mounted) -> None:
    for path in (mounted.cache / "objects").rglob("*"):
        if path.is_file():
            path.unlink(missing_ok=True)


def test_opens_of_all_kinds_mixed(mount: MountFactory, tmp_path: Path) -> None:
    """Sixteen threads on two mounts that share cache and index, while files are evicted, deleted behind
    our back, and listed again: no error, no wrong byte, and nothing is left open."""
    data = Data(tmp_path / "data")
    cache = str(tmp_path / "cache")
    mounts = [mount(f"file://{tmp_path}/data", cache_dir=cache) for _ in range(2)]
    until = time.monotonic() + 8

    def disturb() -> int:
        rounds = 0
        while time.monotonic() < until:
            mounted = mounts[rounds % 2]
            for what in ("evict", "refresh"):
                assert mounted.command(what, str(mounted.path)).returncode == 0
            remove_objects(mounted)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(17) as pool:
        disturbed = pool.submit(disturb)
        readers = [pool.submit(data.read, mounts[n % 2].path, n, until) for n in range(16)]
        assert min(reader.result() for reader in readers) > 3
        assert disturbed.result() > 0
    for mounted in mounts:
        read_all(mounted.path, data.files)
        filesystem, fast_path = mounted.pids()[:2]
        for pid in (filesystem, fast_path):
            wait_until(lambda pid=pid: len(os.listdir(f"/proc/{pid}/fd")) < 60, "descriptors to be closed")
        assert mounted.status()["corrupt_entries"] == 0
    for mounted in mounts:
        mounted.umount()


@contextmanager
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 11_000:
        pytest.skip("this host does not let a process have 11,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ten_thousand_files_open_at_once(mount: MountFactory, tmp_path: Path) -> None:
    """The processes behind the mount hold none of them: the kernel does; and lets go of all."""
    count = 10_000
    names = [f"{n // 500:02}/{n:05}" for n in range(count)]
    write(tmp_path / "data", {name: name.encode() * 3 for name in names})
    mounted = mount(f"file://{tmp_path}/data")
    fds: list[int] = []
    opening: Callable[[str], None] = lambda name: fds.append(os.open(mounted.path / name, os.O_RDONLY))  # noqa: E731
    with many_descriptors(), ExitStack() as stack:
        stack.callback(lambda: [os.close(fd) for fd in fds])
        in_parallel(opening, names, 8)
        assert len(fds) == count
        for pid in mounted.pids()[:2]:
            wait_until(lambda pid=pid: len(os.listdir(f"/proc/{pid}/fd")) < 80, "descriptors to be let go of")
        read = sorted(os.pread(fd, 100, 0) for fd in fds)
        assert read == [name.encode() * 3 for name in names]
        again = os.open(mounted.path / names[0], os.O_RDONLY)
        assert os.pread(again, 100, 0) == names[0].encode() * 3
        os.close(again)
    for name in (names[0], names[-1]):
        assert is_native(mounted, mounted.path / name, name.encode() * 3)
    wait_until(lambda: mounted.count("opens") >= count, "the feed to have told of all")
    mounted.umount()


def test_the_kernel_forgets_backing_files_when_the_last_open_ends(
    mount: MountFactory, tmp_path: Path
) -> None:
    """A deleted cache file takes its space only until then."""
    data = write(tmp_path / "data", {"a": content("a", 3 * MIB)})
    with full_disk(tmp_path) as disk:
        mounted = mount(f"file://{tmp_path}/data", cache_dir=f"{disk}/cache", min_free="1MiB")
        check(mounted.path / "a", data["a"])
        ctypes.CDLL(None).sync()

        def used() -> int:
            now = os.statvfs(disk)
            return (now.f_blocks - now.f_bfree) * now.f_frsize

        with_it = used()
        with (mounted.path / "a").open("rb") as file:
            remove_objects(mounted)
            assert file.read() == data["a"]
            assert used() > with_it - MIB
        wait_until(lambda: used() < with_it - 2 * MIB, "the space to be free", 10)
        mounted.umount()
