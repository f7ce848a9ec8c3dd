"""Where the kernel, the cache's disk or our rights do not allow all: the same bytes, by slower ways."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpufs.cache import CHUNK
from tests.faults.data import check, content, drop_pages, read_all
from tests.machine import device_for_all
from tests.mounts import GPUFS, Mounted, MountFactory, detach, is_mounted, wait_until

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.parametrize("fast_path", ["auto"]),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, drops rights"),
]

SMALL = [f"s/{n}" for n in range(8)]


@pytest.fixture
def data(tmp_path: Path) -> dict[str, bytes]:
    """Small files and a large one in tmp_path/data."""
    files = {name: content(name, 50_000 + n) for n, name in enumerate(SMALL)}
    files |= {"large": content("large", 2 * CHUNK + 99), "empty": b""}
    for name, body in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return files


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def exercise(mounted: Mounted, data: dict[str, bytes]) -> None:
    """Cold, hot, from the cache without the kernel's pages, partly, while open elsewhere, after eviction."""
    read_all(mounted.path, data)
    read_all(mounted.path, data)
    drop_pages(mounted.path, data)
    read_all(mounted.path, data, seed=1)
    held = [os.open(mounted.path / name, os.O_RDONLY) for name in data]
    try:
        assert mounted.command("evict", str(mounted.path)).returncode == 0
        drop_pages(mounted.path, data)
        read_all(mounted.path, data, seed=2)
        for fd, body in zip(held, data.values(), strict=True):
            assert os.pread(fd, len(body) + 1, 0) == body
    finally:
        for fd in held:
            os.close(fd)
    drop_pages(mounted.path, data)
    read_all(mounted.path, data, seed=3)


def goes_on_without_the_filesystem_process(mounted: Mounted, data: dict[str, bytes]) -> None:
    """Files in the cache and in memory are opened and read by the fast path alone."""
    filesystem = mounted.pids()[0]

    def cached(name: str) -> bool:
        """What was evicted while open comes back with the first open after the last close."""
        check(mounted.path / name, data[name])
        return os.getxattr(mounted.path / name, "user.gpufs.cached") == b"yes"

    for name in SMALL[:2]:
        wait_until(lambda name=name: cached(name), "the file to be in the cache again")
        # Into memory, where it is read from without waiting.
        for path in (mounted.cache / "objects").rglob("*"):
            if path.is_file():
                path.read_bytes()
        command = [sys.executable, "-c", READ, str(mounted.path), name]
        with stopped(filesystem):
            reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            with suppress(subprocess.TimeoutExpired):
                reader.wait(20)
            ended = reader.poll()
        said, _ = reader.communicate(timeout=30)
        assert ended == 0, "the reader waited for the filesystem process"
        assert said.split() == [hashlib.md5(data[name]).hexdigest()] * 3


def nothing_is_left_open(mounted: Mounted) -> None:
    for pid in mounted.pids()[:2]:
        wait_until(lambda pid=pid: len(os.listdir(f"/proc/{pid}/fd")) < 60, "descriptors to be closed")


@pytest.mark.parametrize("kind", ["overlay", "tmpfs"])
def test_a_cache_on(kind: str, mount: MountFactory, tmp_path: Path, data: dict[str, bytes]) -> None:
    """The kernel passes no file of an overlay through; of a tmpfs it does. Both are read right."""
    where = tmp_path / "disk"
    layers = [tmp_path / name for name in ("lower", "upper", "work")]
    for directory in (where, *layers):
        directory.mkdir()
    options = f"lowerdir={layers[0]},upperdir={layers[1]},workdir={layers[2]}" if kind == "overlay" else ""
    subprocess.run(["mount", "-t", kind, kind, "-o", options or "size=256M", where], check=True)
    try:
        mounted = mount(f"file://{tmp_path}/data", cache_dir=f"{where}/cache", min_free="1MiB")
        assert mounted.status()["passthrough"] is (kind == "tmpfs")
        exercise(mounted, data)
        goes_on_without_the_filesystem_process(mounted, data)
        nothing_is_left_open(mounted)
        if kind == "overlay":
            assert "no passthrough" in mounted.log()
        mounted.umount()
    finally:
        detach(where)


def resident(path: Path) -> int:
    """Bytes of the files below `path` that are in memory."""
    files = [str(p) for p in path.rglob("*") if p.is_file()]
    done = subprocess.run(
        ["fincore", "-bnr", "-o", "RES", *files], capture_output=True, text=True, check=True
    )
    return sum(map(int, done.stdout.split()))


def test_what_is_read_is_in_memory_once(mount: MountFactory, tmp_path: Path, data: dict[str, bytes]) -> None:
    """Without passthrough the mount's files are in memory, and those of the cache are not."""
    where = tmp_path / "disk"
    layers = [tmp_path / name for name in ("lower", "upper", "work")]
    for directory in (where, *layers):
        directory.mkdir()
    options = f"lowerdir={layers[0]},upperdir={layers[1]},workdir={layers[2]}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, where], check=True)
    try:
        mounted = mount(f"file://{tmp_path}/data", cache_dir=f"{where}/cache")
        read_all(mounted.path, data)
        os.sync()
        drop_pages(mounted.path, data)
        read_all(mounted.path, data)
        total = sum(map(len, data.values()))
        objects = layers[1] / "cache/objects"
        wait_until(lambda: resident(objects) < total // 10, "the cache's own pages to be let go of", 10)
        assert resident(mounted.path) >= total * 9 // 10
        mounted.umount()
    finally:
        detach(where)


def test_socket_buffers_that_cannot_be_large(
    mount: MountFactory, tmp_path: Path, data: dict[str, bytes]
) -> None:
    """Without CAP_NET_ADMIN replies are at most 128 KiB, and the kernel asks for no more."""
    mounted = mount(f"file://{tmp_path}/data", start=False)
    command = [*GPUFS, "mount", mounted.source, str(mounted.path), "-o", mounted.option_text()]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", *command],
        env=mounted.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    fast_path = mounted.pids()[1]
    caps = next(
        line for line in Path(f"/proc/{fast_path}/status").read_text().splitlines() if "CapEff" in line
    )
    assert not int(caps.split()[1], 16) >> 12 & 1, "it has CAP_NET_ADMIN nevertheless"
    exercise(mounted, data)
    assert mounted.status()["passthrough"] is True
    assert sorted(os.listdir(mounted.path / "s")) == sorted(name[2:] for name in SMALL)
    nothing_is_left_open(mounted)
    mounted.umount()


USER = 65534


READ_ALL = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


class ByUser:
    """Runs commands as an ordinary user who has a home and a run-time directory."""

    def __init__(self, mounted: Mounted, work: Path) -> None:
        self.env = mounted.env | {"HOME": f"{work}/home", "XDG_RUNTIME_DIR": f"{work}/run"}
        self.env.pop("XDG_STATE_HOME", None)
        for name in ("home", "run", "mnt"):
            (work / name).mkdir(mode=0o700, exist_ok=True)
            os.chown(work / name, USER, USER)
        work.chmod(0o755)

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            # This Python may lie where only root can look: the one capability he keeps lets him read.
            ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *READ_ALL, *command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
        )


READ = """
import hashlib, os, sys
root, names = sys.argv[1], sys.argv[2:]
for again in range(3):
    for name in names:
        fd = os.open(f"{root}/{name}", os.O_RDONLY)
        if again:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        print(hashlib.md5(data).hexdigest())
        os.close(fd)
"""


def test_an_ordinary_user(mount: MountFactory, tmp_path: Path, data: dict[str, bytes]) -> None:
    """By way of fusermount3: no passthrough, small socket buffers, nothing set in /sys; all bytes right."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/tmp") and directory != Path("/") and directory.stat().st_uid == os.geteuid():
            directory.chmod(directory.stat().st_mode | 0o055)
    mounted = mount(f"file://{tmp_path}/data", start=False)
    mounted.options["cache_dir"] = str(mounted.path.parent / "home/cache")
    user = ByUser(mounted, mounted.path.parent)
    with device_for_all():
        done = user(*GPUFS, "mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert done.returncode == 0, done.stderr
    try:
        read = user(sys.executable, "-c", READ, str(mounted.path), *data)
        assert read.returncode == 0, read.stderr
        assert read.stdout.split() == [hashlib.md5(body).hexdigest() for body in data.values()] * 3
        status = user(*GPUFS, "status", str(mounted.path), "--json")
        assert '"passthrough": false' in status.stdout and '"fast_path": true' in status.stdout, status.stdout
        assert is_mounted(mounted.path)
    finally:
        done = user(*GPUFS, "umount", str(mounted.path))
    assert done.returncode == 0, done.stderr
    assert not is_mounted(mounted.path)
