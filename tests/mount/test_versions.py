"""Objects and names that change at the source while they are mounted, cached and open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import MountFactory, wait_until
from tests.servers import S3Endpoint

pytestmark = pytest.mark.fuse

Bucket = Callable[[S3Endpoint], str]
CHUNK = 4 << 20


@pytest.fixture(params=["weed", "moto"])
def server(request: pytest.FixtureRequest) -> S3Endpoint:
    endpoint: S3Endpoint = request.getfixturevalue(request.param)
    return endpoint


def pieces_of(fd: int, old: bytes) -> list[int]:
    """Read every 512 KiB of `fd`: all must be of `old` or fail; the errnos of those that failed."""
    failed = []
    step = 512 << 10
    for offset in range(0, len(old), step):
        try:
            assert os.pread(fd, step, offset) == old[offset : offset + step], f"other bytes at {offset}"
        except OSError as error:
            failed.append(error.errno or 0)
    return failed


def test_a_half_read_file_that_is_overwritten(
    server: S3Endpoint, bucket: Bucket, mount: MountFactory
) -> None:
    """Case 1: a reader gets bytes of the version it opened or ESTALE, never a mix; a new open gets the new.

    A small object is whole at its opening, so its reader gets all of it.
    """
    name = bucket(server)
    old, new = os.urandom(6 * CHUNK), os.urandom(5 * CHUNK + 77)
    small_old, small_new = os.urandom(300_000), os.urandom(17)
    server.put(name, {"big": old, "small": small_old})
    mounted = mount(f"s3://{name}", server, metadata_ttl="1s")
    big, small = (os.open(mounted.path / each, os.O_RDONLY) for each in ("big", "small"))
    try:
        assert os.pread(big, CHUNK, 0) == old[:CHUNK]
        assert os.pread(small, 1000, 0) == small_old[:1000]
        server.put(name, {"big": new, "small": small_new})

        failed = pieces_of(big, old)
        assert set(failed) == {errno.ESTALE}, "parts never fetched are gone with their version"
        assert pieces_of(small, small_old) == []
        wait_until(lambda: os.stat(mounted.path / "big").st_size == len(new), "the new version to show")
        assert (mounted.path / "big").read_bytes() == new
        assert (mounted.path / "small").read_bytes() == small_new
        # The new version's coming must not have changed anything for whoever has the old one open.
        assert set(pieces_of(big, old)) <= {errno.ESTALE}
        assert os.pread(big, CHUNK, 0) == old[:CHUNK]
        assert os.pread(small, len(small_old) + 1, 0) == small_old
        assert os.fstat(small).st_size == len(small_old)
    finally:
        os.close(big)
        os.close(small)


def put_in_one_second(server: S3Endpoint, name: str, first: bytes, then: Callable[[], None]) -> bytes:
    """Store `first` as `k`, run `then`, change one byte: within one second of the server's clock."""
    client = server.client()
    second = bytes([first[0] ^ 1]) + first[1:]
    for _ in range(20):
        times = []
        for body, after in ((first, then), (second, lambda: None)):
            server.put(name, {"k": body})
            times.append(client.head_object(Bucket=name, Key="k")["LastModified"].replace(microsecond=0))
            after()
        if times[0] == times[1]:
            return second
    pytest.fail("no two puts fell into one second")


def test_one_byte_changed_in_the_same_second(server: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 2: size and second are equal, yet after a refresh, or the ttl, the new byte is read."""
    name = bucket(server)
    first = os.urandom(5000)
    server.put(name, {"k": first})
    frozen = mount(f"s3://{name}", server)
    live = mount(f"s3://{name}", server, metadata_ttl="1s")

    def read_the_first() -> None:
        frozen.refresh()
        assert (frozen.path / "k").read_bytes() == first
        wait_until(lambda: (live.path / "k").read_bytes() == first, "the first version to show")

    def nothing() -> None:
        pass

    read_the_first()
    second = put_in_one_second(server, name, first, nothing)
    assert (frozen.path / "k").read_bytes() == first, "metadata_ttl=forever: nothing changes by itself"
    with (frozen.path / "k").open("rb") as before:
        frozen.refresh("k")
        assert (frozen.path / "k").read_bytes() == second
        assert before.read() == first
    wait_until(lambda: (live.path / "k").read_bytes() == second, "the new byte to show")
    assert frozen.count("cache_objects") == 2, "two versions are two entries"


def tolerant(look: Callable[[], object]) -> object:
    """What `look` returns; None while the name is still of the other kind or being looked up. EIO fails."""
    try:
        return look()
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE), error
        return None


def test_a_file_becomes_a_directory_and_the_reverse(
    server: S3Endpoint, bucket: Bucket, mount: MountFactory
) -> None:
    """Case 14: cached and open `v` becomes `v/1`, and `w/1` becomes `w`: seen after the ttl, never EIO."""
    name = bucket(server)
    client = server.client()
    server.put(name, {"v": b"file v", "w/1": b"file w/1", "w/deep/2": b"two", "still": b"here"})
    mounted = mount(f"s3://{name}", server, metadata_ttl="1s").crawled()
    v, w = mounted.path / "v", mounted.path / "w"
    assert (v.read_bytes(), (w / "1").read_bytes(), (w / "deep/2").read_bytes()) == (
        b"file v",
        b"file w/1",
        b"two",
    )
    with v.open("rb") as open_file, (w / "1").open("rb") as below:
        inside = os.open(w, os.O_RDONLY | os.O_DIRECTORY)
        try:
            client.delete_object(Bucket=name, Key="v")
            for key in ("w/1", "w/deep/2"):
                client.delete_object(Bucket=name, Key=key)
            if not server.flat:  # the store is a tree itself: its directory must go first
                for key in ("w/deep/", "w/"):
                    client.delete_object(Bucket=name, Key=key)
            server.put(name, {"v/1": b"now below", "w": b"now a file"})
            wait_until(lambda: tolerant((v / "1").read_bytes) == b"now below", "v to become a directory")
            wait_until(lambda: tolerant(w.read_bytes) == b"now a file", "w to become a file")
            assert sorted(os.listdir(mounted.path)) == ["still", "v", "w"]
            assert os.listdir(v) == ["1"]
            assert (v.is_dir(), w.is_file()) == (True, True)
            with pytest.raises(NotADirectoryError):
                (w / "1").read_bytes()
            # Whoever was there before keeps what he had.
            assert (open_file.read(), below.read()) == (b"file v", b"file w/1")
            assert tolerant(lambda: os.listdir(inside)) in (None, [], ["1", "deep"])
        finally:
            os.close(inside)


def test_a_removed_name_and_a_new_one(server: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """A name that was denied appears, and one that was there goes, with the ttl and with `gpufs refresh`."""
    name = bucket(server)
    server.put(name, {"d/old": b"old"})
    live = mount(f"s3://{name}", server, metadata_ttl="1s")
    frozen = mount(f"s3://{name}", server)
    for each in (live, frozen):
        assert (each.path / "d/old").read_bytes() == b"old"
        assert not (each.path / "d/new").exists()
    server.put(name, {"d/new": b"new"})
    server.client().delete_object(Bucket=name, Key="d/old")
    wait_until(lambda: (live.path / "d/new").exists(), "the new name")
    wait_until(lambda: not (live.path / "d/old").exists(), "the old name to go")
    assert not (frozen.path / "d/new").exists()
    frozen.refresh("d")
    for each in (live, frozen):
        assert os.listdir(each.path / "d") == ["new"]
        assert (each.path / "d/new").read_bytes() == b"new"
        assert not (each.path / "d/old").exists()


def test_a_mount_point_path_works_for_refresh(weed: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """`gpufs refresh MOUNTPOINT` sees changes everywhere in the tree, also where nobody has looked."""
    name = bucket(weed)
    weed.put(name, {"a/1": b"1", "b/c/2": b"2"})
    mounted = mount(f"s3://{name}", weed).crawled()
    assert sorted(str(p.relative_to(mounted.path)) for p in Path(mounted.path).rglob("*")) == [
        "a",
        "a/1",
        "b",
        "b/c",
        "b/c/2",
    ]
    weed.put(name, {"b/c/3": b"3", "e/4": b"4"})
    mounted.refresh()
    assert (mounted.path / "b/c/3").read_bytes() + (mounted.path / "e/4").read_bytes() == b"34"
