"""Everyday tools give right results on a mount, and have nothing to complain about."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mounts import Mounted, MountFactory, is_mounted
from tests.servers import S3Endpoint

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20


def dataset() -> dict[str, bytes]:
    """Text and binary files of all interesting sizes, in a few directories."""
    source = random.Random(5)
    sizes = {"empty": 0, "one": 1, "page": 4096, "page+1": 4097, "chunk": CHUNK, "chunk+1": CHUNK + 1}
    objects = {f"sizes/{name}": source.randbytes(size) for name, size in sizes.items()}
    objects["sizes/large"] = source.randbytes(3 * CHUNK - 7)
    for number in range(60):
        objects[f"train/{number % 4}/{number:03d}.jpg"] = source.randbytes(source.randrange(100, 30_000))
    for number in range(10):
        line = b"a needle\n" if number == 7 else b"hay\n"
        objects[f"text/{number}.txt"] = b"some hay\n" * number * 100 + line
    objects["with space & 'quotes'/\N{SNOWMAN}.txt"] = b"odd\n"
    return objects


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The data set as an ordinary directory."""
    for key, body in dataset().items():
        (tmp_path / "local" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / key).write_bytes(body)
    return tmp_path / "local"


@pytest.fixture
def mounted(weed: S3Endpoint, bucket: Callable[[S3Endpoint], str], mount: MountFactory) -> Mounted:
    name = bucket(weed)
    weed.put(name, dataset())
    return mount(f"s3://{name}", weed)


def run(*command: object, cwd: Path | None = None) -> str:
    """The output of a command that must succeed and say nothing on stderr."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env=os.environ | {"LC_ALL": "C.UTF-8"}
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{words}: {done.stderr}"
    return done.stdout


def test_looking_tools(mounted: Mounted, local: Path) -> None:
    """ls, find, stat, du, df, wc and grep agree with what they say about a plain copy of the data."""
    on = mounted.path
    for command in (
        ("find", ".", "-type", "f"),
        ("find", ".", "-type", "d"),
        ("find", ".", "-name", "*.jpg", "-size", "+8k"),
        ("find", ".", "-empty", "-type", "f"),
        ("ls", "-R"),
        ("ls", "-1", "train/0"),
        ("grep", "-rl", "needle", "text"),
        ("grep", "-rc", "hay", "text"),
        ("wc", "-lc", *(f"text/{number}.txt" for number in range(10))),
        ("stat", "-c", "%n %s %F", *dataset()),
        ("du", "-b", "sizes/large", "text/3.txt"),
        ("cksum", *dataset()),
    ):
        ours, theirs = run(*command, cwd=on), run(*command, cwd=local)
        if command[0] in ("find", "grep"):
            assert sorted(ours.splitlines()) == sorted(theirs.splitlines()), command
        else:
            assert ours == theirs, command
        assert ours, command
    listed = run("ls", "-laR", on)
    assert listed.count("-r--r--r--") == len(dataset()) and listed.count("dr-xr-xr-x") >= 9
    assert "?" not in listed


def test_sizes(mounted: Mounted) -> None:
    """du, df, df -i and statfs agree: the data set is what is used, and nothing is free."""
    mounted.crawled()
    objects = dataset()
    total = sum(map(len, objects.values()))
    directories = {parent for key in objects for parent in Path(key).parents} - {Path(".")}
    assert run("du", "-sb", "--apparent-size", mounted.path).split()[0] == str(total), "directories count 0"
    blocks = sum(-(-len(body) // 512) for body in objects.values())
    assert run("du", "-s", "--block-size=512", mounted.path).split()[0] == str(blocks)
    source, size, used, available, percent = (
        run("df", "-B1", "--output=source,size,used,avail,pcent", mounted.path).splitlines()[1].split()
    )
    assert source == mounted.source
    assert int(size) == int(used) == -(-total // 4096) * 4096
    assert (available, percent) == ("0", "100%")
    assert run("df", "--output=itotal,iused,iavail", mounted.path).split()[-3:] == [
        str(len(objects) + len(directories))
    ] * 2 + ["0"]
    assert run("df", "-T", mounted.path).splitlines()[1].split()[1] == "fuse.gpufs"
    found = os.statvfs(mounted.path)
    assert (found.f_bavail, found.f_ffree, found.f_namemax, found.f_frsize) == (0, 0, 255, 4096)
    assert found.f_flag & os.ST_RDONLY and found.f_flag & os.ST_NOSUID


def test_copying_tools(mounted: Mounted, local: Path, tmp_path: Path) -> None:
    """cp -r, tar, rsync --checksum, cat and dd bring out exactly the bytes that were uploaded."""
    expected = {
        str(path.relative_to(local)): path.read_bytes() for path in local.rglob("*") if path.is_file()
    }

    def files(root: Path) -> dict[str, bytes]:
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    run("cp", "-r", mounted.path, tmp_path / "cp")
    assert files(tmp_path / "cp") == expected
    run("tar", "-C", mounted.path, "-cf", tmp_path / "set.tar", ".")
    (tmp_path / "tar").mkdir()
    run("tar", "-C", tmp_path / "tar", "-xf", tmp_path / "set.tar")
    assert files(tmp_path / "tar") == expected
    run("tar", "-C", mounted.path, "--compare", "-f", tmp_path / "set.tar")
    run("diff", "-r", mounted.path, local)
    assert (
        run("rsync", "-rn", "--checksum", "--out-format=%n", "--delete", f"{local}/", f"{mounted.path}/")
        == ""
    )
    run("rsync", "-a", f"{mounted.path}/", tmp_path / "rsync")
    assert files(tmp_path / "rsync") == expected
    assert run("rsync", "-an", "--checksum", "--out-format=%n", f"{mounted.path}/", tmp_path / "rsync") == ""
    sums = "".join(f"{hashlib.md5(body).hexdigest()}  {key}\n" for key, body in expected.items())
    (tmp_path / "sums").write_text(sums)
    run("md5sum", "--quiet", "-c", tmp_path / "sums", cwd=mounted.path)
    large = mounted.path / "sizes/large"
    run("dd", f"if={large}", f"of={tmp_path / 'dd'}", "bs=123457", "skip=5", "status=none")
    assert (tmp_path / "dd").read_bytes() == expected["sizes/large"][5 * 123457 :]
    assert run("tail", "-c", "9", mounted.path / "text/7.txt") == "a needle\n"


def test_python_readers(mounted: Mounted) -> None:
    """mmap, sendfile, readv, seek behind the end, scandir and 8 threads at once see the right bytes."""
    body = dataset()["sizes/large"]
    path = mounted.path / "sizes/large"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[-1000:] == body[-1000:]
        assert mapped[CHUNK - 10 : CHUNK + 10] == body[CHUNK - 10 : CHUNK + 10]
        assert hashlib.sha256(mapped).digest() == hashlib.sha256(body).digest()
        assert os.pread(file.fileno(), 10, len(body)) == b""
        assert os.pread(file.fileno(), 10, len(body) + (1 << 40)) == b""
        assert os.pread(file.fileno(), 100, len(body) - 3) == body[-3:]
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == len(body)
        buffers = [bytearray(7), bytearray(CHUNK), bytearray(100)]
        assert os.preadv(file.fileno(), buffers, 1) == CHUNK + 107
        assert b"".join(buffers) == body[1 : CHUNK + 108]
        copied = os.memfd_create("copy")
        try:
            sent = 0
            while sent < len(body):
                sent += os.sendfile(copied, file.fileno(), sent, len(body))
            assert os.pread(copied, len(body), 0) == body
        finally:
            os.close(copied)
    with os.scandir(mounted.path / "sizes") as entries:
        found = {entry.name: (entry.is_file(), entry.stat().st_size) for entry in entries}
    assert found["chunk+1"] == (True, CHUNK + 1) and len(found) == 7

    def read(number: int) -> bool:
        keys = list(dataset())
        random.Random(number).shuffle(keys)
        return all((mounted.path / key).read_bytes() == dataset_once[key] for key in keys)

    dataset_once = dataset()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_8_processes_read_at_once(mounted: Mounted) -> None:
    """8 cold readers in processes of their own each get everything right, and each object is fetched once."""
    code = (
        "import hashlib, os, sys; total = hashlib.sha256()\n"
        "for name in sorted(os.path.join(w, f) for w, _, fs in os.walk(sys.argv[1]) for f in fs):\n"
        "    total.update(open(name, 'rb').read())\n"
        "print(total.hexdigest())"
    )
    objects = dataset()
    expected = hashlib.sha256()
    for key in sorted(objects):
        expected.update(objects[key])
    readers = [
        subprocess.Popen([sys.executable, "-c", code, mounted.path], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    assert {reader.communicate()[0].strip() for reader in readers} == {expected.hexdigest()}
    assert mounted.count("remote_bytes") == sum(map(len, objects.values()))


def test_extended_attributes(mounted: Mounted) -> None:
    """getfattr shows key, version, source and whether the object is here; others are absent, not errors."""
    path = mounted.path / "train/0/000.jpg"
    names = sorted(os.listxattr(path))
    assert names == [f"user.gpufs.{name}" for name in ("cached", "key", "source", "version")]
    assert os.getxattr(path, "user.gpufs.key") == b"train/0/000.jpg"
    assert os.getxattr(path, "user.gpufs.source").decode() == mounted.source
    version = os.getxattr(path, "user.gpufs.version").decode()
    assert version == hashlib.md5(dataset()["train/0/000.jpg"]).hexdigest()
    assert os.getxattr(path, "user.gpufs.cached") == b"no"
    path.read_bytes()
    assert os.getxattr(path, "user.gpufs.cached") == b"yes"
    done = mounted.command("evict", str(path))
    assert done.returncode == 0, done.stderr
    assert os.getxattr(path, "user.gpufs.cached") == b"no"
    assert sorted(os.listxattr(mounted.path / "train")) == ["user.gpufs.key", "user.gpufs.source"]
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(path, "user.other")
    shown = run("getfattr", "-d", "-R", "--absolute-names", mounted.path / "train/0")
    assert shown.count("user.gpufs.cached=") == 15


def test_what_programs_ask_of_an_open_file(mounted: Mounted) -> None:
    """O_DIRECT, locks, advice, sparse seeks, reopening through /proc: as on any local filesystem."""
    body = dataset()["sizes/large"]
    path = mounted.path / "sizes/large"
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 2 << 20) as aligned:
            for offset in (0, 3 << 20, 10 << 20):
                count = os.preadv(fd, [aligned], offset)
                assert aligned[:count] == body[offset : offset + count] and count > 1 << 20
    finally:
        os.close(fd)
    with path.open("rb") as file, path.open("rb") as other:
        for lock in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            fcntl.flock(file, lock | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_RANDOM, os.POSIX_FADV_WILLNEED):
            os.posix_fadvise(file.fileno(), 0, 0, advice)
        assert os.lseek(file.fileno(), 100, os.SEEK_DATA) == 100
        assert os.lseek(file.fileno(), 100, os.SEEK_HOLE) == len(body)
        with open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
            assert again.read() == body
        os.fsync(file.fileno())
    with pytest.raises(NotADirectoryError):
        os.stat(f"{path}/")
    with pytest.raises(IsADirectoryError):
        path.parent.read_bytes()
    with pytest.raises(PermissionError):
        subprocess.run([path], check=False)


def test_numbers_stay(mounted: Mounted) -> None:
    """Inode numbers are the same in readdir and stat, unique, and after a remount."""

    def numbers() -> dict[str, int]:
        found = {}
        for where, directories, files in os.walk(mounted.path):
            for entry in os.scandir(where):
                assert entry.inode() == os.stat(entry.path).st_ino
            for each in (*directories, *files):
                path = os.path.join(where, each)
                found[os.path.relpath(path, mounted.path)] = os.stat(path).st_ino
        return found

    before = numbers()
    assert len(set(before.values())) == len(before) > len(dataset())
    mounted.remount()
    assert numbers() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_below_an_overlay_and_a_bind_mount(mounted: Mounted, tmp_path: Path) -> None:
    """Containers see the tree through a bind mount, or as the lower layer of an overlay they may write to."""
    for name in ("bound", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    expected = dataset()["train/0/000.jpg"]
    made = []
    try:
        run("mount", "--bind", mounted.path / "train", tmp_path / "bound")
        made.append(tmp_path / "bound")
        assert (tmp_path / "bound/0/000.jpg").read_bytes() == expected
        layers = f"lowerdir={mounted.path},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, tmp_path / "merged")
        made.append(tmp_path / "merged")
        copy = tmp_path / "merged/train/0/000.jpg"
        assert copy.read_bytes() == expected
        copy.chmod(0o644)
        with copy.open("ab") as file:
            file.write(b"more")
        (tmp_path / "merged/sizes/one").unlink()
        assert copy.read_bytes() == expected + b"more"
        assert not (tmp_path / "merged/sizes/one").exists()
        assert (mounted.path / "train/0/000.jpg").read_bytes() == expected
        assert (mounted.path / "sizes/one").exists()
        done = mounted.command("umount", str(mounted.path))
        assert done.returncode == 0 and "mounted elsewhere too" in done.stderr
        assert not is_mounted(mounted.path)
        assert (tmp_path / "bound/1/001.jpg").read_bytes() == dataset()["train/1/001.jpg"]
    finally:
        for path in reversed(made):
            run("umount", path)
