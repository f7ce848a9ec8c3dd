"""Very many names: what they cost at the source, in memory, and that none is lost or shown twice."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounts import Mounted, MountFactory
from tests.servers import BUCKET, ListingServer, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

FILES = 20_000


def run(*command: str | Path) -> str:
    """The output of a command that must succeed and say nothing on stderr."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def many() -> Iterator[tuple[ListingServer, S3Endpoint]]:
    """One directory `d` of 20,000 small files."""
    objects = {b"d/%05d.jpg" % number: b"%d" % number for number in range(FILES)}
    with listing_server(objects) as served:
        yield served


def test_20_000_files_in_one_directory(many: tuple[ListingServer, S3Endpoint], mount: MountFactory) -> None:
    """Case 9: `ls -l` costs one LIST per 1,000 names and no HEAD; `ls -l` and stat again cost nothing."""
    scripted, server = many
    scripted.counts.clear()
    mounted = mount(f"s3://{BUCKET}", server)
    lines = run("ls", "-l", mounted.path / "d").splitlines()
    assert len(lines) == FILES + 1
    assert lines[-1].endswith(f"{FILES - 1:05d}.jpg")
    mounted.crawled()
    # The listing that `ls` waited for, the crawl (each of its ranges may cost a request), the root's own and
    # the check at mount.
    assert scripted.counts["LIST"] <= 2.1 * FILES / 1000 + 6, scripted.counts
    assert scripted.counts["GET"] == 0
    assert scripted.counts["HEAD"] <= 1, "one to find the bucket's region out, none per file"
    assert mounted.count("remote_requests") == sum(scripted.counts.values())

    scripted.counts.clear()
    again = run("ls", "-l", mounted.path / "d").splitlines()
    assert again == lines
    for number in range(FILES):
        assert os.stat(mounted.path / f"d/{number:05d}.jpg").st_size == len(str(number))
    assert not scripted.counts, "everything is known"


def test_remounting_lists_nothing(many: tuple[ListingServer, S3Endpoint], mount: MountFactory) -> None:
    """A second mount of a known dataset answers from its index: no request at all, also for misses."""
    scripted, server = many
    mounted = mount(f"s3://{BUCKET}", server).crawled()
    scripted.counts.clear()
    mounted.remount()
    assert len(os.listdir(mounted.path / "d")) == FILES
    assert not (mounted.path / "d/missing").exists()
    assert mounted.status()["crawled"] and mounted.count("files") == FILES
    assert not scripted.counts
    assert (mounted.path / "d/00007.jpg").read_bytes() == b"7"
    assert scripted.counts == {"GET": 1}


class DirectoryStream:
    """opendir(3) and friends, for telldir and seekdir, which Python does not have."""

    class Entry(ctypes.Structure):
        _fields_ = (
            ("ino", ctypes.c_uint64),
            ("off", ctypes.c_int64),
            ("reclen", ctypes.c_ushort),
            ("type", ctypes.c_ubyte),
            ("name", ctypes.c_char * 256),
        )

    def __init__(self, path: Path) -> None:
        self._libc = libc = ctypes.CDLL(None, use_errno=True)
        libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
        libc.readdir.argtypes = libc.closedir.argtypes = libc.telldir.argtypes = (ctypes.c_void_p,)
        libc.rewinddir.argtypes = (ctypes.c_void_p,)
        libc.telldir.restype = ctypes.c_long
        libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
        self._stream = libc.opendir(os.fsencode(path))
        assert self._stream, os.strerror(ctypes.get_errno())

    def next(self) -> str | None:
        ctypes.set_errno(0)
        address = self._libc.readdir(self._stream)
        if not address:
            assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
            return None
        return os.fsdecode(self.Entry.from_address(address).name)

    def rest(self) -> list[str]:
        return list(iter(self.next, None))

    def tell(self) -> int:
        return int(self._libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        self._libc.seekdir(self._stream, position)

    def rewind(self) -> None:
        self._libc.rewinddir(self._stream)

    def close(self) -> None:
        self._libc.closedir(self._stream)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], DirectoryStream]]:
    streams: list[DirectoryStream] = []

    def make(path: Path) -> DirectoryStream:
        streams.append(DirectoryStream(path))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


def test_telldir_and_seekdir(
    many: tuple[ListingServer, S3Endpoint],
    mount: MountFactory,
    opened: Callable[[Path], DirectoryStream],
) -> None:
    """A position of telldir leads back to the same next name, in any order; all names come once."""
    mounted = mount(f"s3://{BUCKET}", many[1])
    stream = opened(mounted.path / "d")
    names: list[str] = []
    positions = []
    for number in range(FILES + 2):
        if number % 997 == 0:
            positions.append((stream.tell(), number))
        name = stream.next()
        assert name is not None
        names.append(name)
    end = stream.tell()
    assert stream.next() is None
    assert sorted(names) == [".", "..", *(f"{number:05d}.jpg" for number in range(FILES))]
    for position, number in (*reversed(positions), *positions[::3]):
        stream.seek(position)
        assert stream.next() == names[number]
    stream.seek(positions[-2][0])
    assert stream.rest() == names[positions[-2][1] :]
    stream.seek(end)
    assert stream.next() is None
    stream.rewind()
    assert stream.rest() == names
    assert [entry.name for entry in os.scandir(mounted.path / "d")] == names[2:]


def test_a_directory_that_is_refreshed_while_it_is_read(
    weed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    mount: MountFactory,
    opened: Callable[[Path], DirectoryStream],
) -> None:
    """Names that stay come exactly once, though others are added, removed and replaced meanwhile."""
    name = bucket(weed)
    stay = {f"d/{number:04d}-stay" for number in range(0, 2000, 2)}
    go = {f"d/{number:04d}-go" for number in range(1, 2000, 2)}
    weed.put(name, dict.fromkeys(stay | go, b"1"))
    mounted = mount(f"s3://{name}", weed).crawled()
    stream = opened(mounted.path / "d")
    seen = [stream.next() for _ in range(1001)]
    client = weed.client()
    for keys in (sorted(go)[:500], sorted(go)[500:]):
        client.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in keys]})
    weed.put(name, {key: b"22" for key in sorted(stay)[::10]})
    weed.put(name, {f"d/{number:04d}-new": b"3" for number in range(0, 2000, 20)})
    mounted.refresh()
    seen += stream.rest()
    assert len(set(seen)) == len(seen), "no name twice"
    assert {f"d/{each}" for each in seen if each and each.endswith("-stay")} == stay
    now = {f"d/{each}" for each in os.listdir(mounted.path / "d")}
    assert now == stay | {f"d/{number:04d}-new" for number in range(0, 2000, 20)}
    assert (mounted.path / sorted(stay)[10]).stat().st_size == 2


def private_memory(mounted: Mounted) -> int:
    """Bytes of the daemon that are neither files mapped (the index is one) nor shared."""
    total = 0
    for pid in mounted.status()["pids"]:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        total += int(found[1]) << 10
    return total


def test_100_000_directories_of_one_object(mount: MountFactory) -> None:
    """Case 15: known after about 110 requests, not 100,000; `find` finishes; memory stays flat.

    `find` goes through a tenth of them here, because all of them take it a minute.
    """
    count = 100_000
    objects = {b"%03d/%05d/x" % (number % 1000, number): b"y" for number in range(count)}
    with listing_server(objects) as (scripted, server):
        mounted = mount(f"s3://{BUCKET}", server)
        before = private_memory(mounted)
        mounted.crawled()
        after_crawl = private_memory(mounted)
        assert scripted.counts["LIST"] <= 1.1 * count / 1000 + 5, scripted.counts
        assert (mounted.count("files"), mounted.count("directories")) == (count, count + 1000)
        scripted.counts.clear()
        tenth = [mounted.path / f"{number:03d}" for number in range(100)]
        assert len(run("find", *tenth, "-type", "f").splitlines()) == count / 10
        assert (mounted.path / "999/99999/x").read_bytes() == b"y"
        assert scripted.counts == {"GET": 1}
        assert after_crawl - before < 24 << 20, "eight answers at once, and what their threads keep"
        assert private_memory(mounted) - before < 28 << 20
