"""Objects that are not plain files at the source: encoded, archived, very large."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable

import pytest

from tests.mounts import MountFactory
from tests.servers import BUCKET, FaultProxy, Pattern, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

Bucket = Callable[[S3Endpoint], str]
CHUNK = 4 << 20


@pytest.mark.parametrize("store", ["weed", "moto"])
def test_a_gzip_content_encoding_changes_nothing(
    store: str, request: pytest.FixtureRequest, bucket: Bucket, mount: MountFactory
) -> None:
    """Case 6: an object stored with `Content-Encoding: gzip` has its stored length and its stored bytes.

    Also one that says so and is not gzip at all, and one that is read in ranges.
    """
    server: S3Endpoint = request.getfixturevalue(store)
    name = bucket(server)
    objects = {
        "text.gz": gzip.compress(b"the quick brown fox " * 5000, mtime=0),
        "false.gz": b"not gzip at all",
        "large.gz": gzip.compress(os.urandom(CHUNK + 300_000), 1, mtime=0),
    }
    server.put(name, objects, ContentEncoding="gzip", ContentType="text/plain")
    mounted = mount(f"s3://{name}", server)
    for key, stored in objects.items():
        assert (mounted.path / key).stat().st_size == len(stored)
        with (mounted.path / key).open("rb") as file:
            assert os.pread(file.fileno(), 1000, len(stored) - 9) == stored[-9:]
            assert os.pread(file.fileno(), 100, 5) == stored[5:105]
            assert file.read() == stored
    assert gzip.decompress((mounted.path / "text.gz").read_bytes()) == b"the quick brown fox " * 5000


def test_an_archived_object(
    moto: S3Endpoint, bucket: Bucket, proxy: Callable[[S3Endpoint], FaultProxy], mount: MountFactory
) -> None:
    """Case 7: an open fails at once with EACCES, the log says how to restore, and afterwards it reads."""
    name = bucket(moto)
    small, large = os.urandom(1000), os.urandom(CHUNK + 1)
    moto.put(name, {"cold/small file": small, "cold/large": large}, StorageClass="GLACIER")
    moto.put(name, {"warm": b"warm"})
    front = proxy(moto)
    mounted = mount(f"s3://{name}", moto, endpoint_url=front.url).crawled()
    cold = mounted.path / "cold"
    assert [(p.name, p.stat().st_size) for p in sorted(cold.iterdir())] == [
        ("large", len(large)),
        ("small file", len(small)),
    ]
    front.forget()
    with pytest.raises(PermissionError) as caught:
        (cold / "small file").open("rb")
    assert caught.value.errno == errno.EACCES
    assert len(front.seen("GET")) == 1, "it is not tried again: only a person can help"
    with pytest.raises(PermissionError), (cold / "large").open("rb") as file:
        file.read(1)
    said = mounted.log()
    assert f"aws s3api restore-object --bucket {name} --key 'cold/small file'" in said
    assert f"aws s3api restore-object --bucket {name} --key cold/large" in said
    assert (mounted.path / "warm").read_bytes() == b"warm"

    for key in ("cold/small file", "cold/large"):
        moto.client().restore_object(Bucket=name, Key=key, RestoreRequest={"Days": 7})
    assert (cold / "small file").read_bytes() == small
    assert (cold / "large").read_bytes() == large


def test_byte_0_a_thousand_times(mount: MountFactory, proxy: Callable[[S3Endpoint], FaultProxy]) -> None:
    """Case 8: reading byte 0 of a 1 GiB file 1,000 times, opened anew or not, fetches at most one chunk."""
    with listing_server({b"model.bin": Pattern(1 << 30)}) as (_, server):
        front = proxy(server)
        mounted = mount(f"s3://{BUCKET}", server, endpoint_url=front.url)
        path = mounted.path / "model.bin"
        assert path.stat().st_size == 1 << 30
        with path.open("rb") as file:
            for _ in range(500):
                # Without the page cache every read is a request to the daemon.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(file.fileno(), 1, 0) == b"\0"
        for _ in range(500):
            with path.open("rb", buffering=0) as file:
                assert file.read(1) == b"\0"
        assert front.counts()["GET"] == 1
        assert mounted.count("remote_bytes") <= CHUNK
        with path.open("rb", buffering=0) as file:
            file.seek(-8, os.SEEK_END)
            assert file.read() == ((1 << 27) - 1).to_bytes(8, "little")
