"""Every source: reads give exactly the bytes of exactly one version, or an error."""

from __future__ import annotations

import gzip
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufs.errors import VersionGone
from gpufs.metrics import Metrics
from gpufs.source import ObjectRef
from tests.conformance.labs import FileLab, Lab, S3Lab
from tests.conformance.tree import listed, ref

BODY = random.Random(1).randbytes(300_007)


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, len(BODY)),
        (0, 1),
        (0, 4096),
        (131_071, 70_003),
        (150_000, 1),
        (len(BODY) - 1, 1),
        (len(BODY) - 5000, 5000),
        (1, len(BODY) - 1),
        (0, 0),
        (len(BODY), 0),
    ],
)
def test_a_range_is_exactly_these_bytes(lab: Lab, offset: int, length: int) -> None:
    lab.fill({b"d/f": BODY})
    metrics = Metrics()
    source = lab.source(metrics)
    got = source.read(ref(source, b"d/f"), offset, length)
    assert isinstance(got, memoryview)
    assert got == BODY[offset : offset + length]
    assert metrics.remote_bytes.value >= length


def test_the_version_of_the_list_reads(lab: Lab) -> None:
    lab.fill({b"f": BODY})
    source = lab.source()
    entry = listed(source)[b"f"]
    assert source.read(ObjectRef(b"f", entry.version, entry.size), 0, entry.size) == BODY


def test_an_object_larger_than_a_chunk(lab: Lab) -> None:
    body = random.Random(2).randbytes(9 * 2**20 + 1)
    lab.fill({b"f": body})
    source = lab.source()
    whole = ref(source, b"f")
    assert source.read(whole, 0, len(body)) == body
    assert source.read(whole, 4 * 2**20, 4 * 2**20) == body[4 * 2**20 : 8 * 2**20]


def test_a_zero_length_file(lab: Lab) -> None:
    lab.fill({b"f": b""})
    source = lab.source()
    assert bytes(source.read(ref(source, b"f"), 0, 0)) == b""


@pytest.mark.parametrize("new", [b"other", b"12345678X", b"", b"much longer than before"])
def test_a_replaced_object_is_gone_and_the_new_one_reads(lab: Lab, new: bytes) -> None:
    """Case 2 among them: same size, one byte different, the same second."""
    lab.fill({b"f": b"123456789"})
    source = lab.source()
    old = ref(source, b"f")
    assert bytes(source.read(old, 0, 9)) == b"123456789"
    lab.fill({b"f": new})
    for offset, length in [(0, 9), (0, 1), (8, 1), (3, 4)]:
        with pytest.raises(VersionGone):
            source.read(old, offset, length)
    now = ref(source, b"f")
    assert (now.version, now.size) != (old.version, old.size)
    assert listed(source)[b"f"].version == now.version
    assert source.read(now, 0, len(new)) == new


def test_a_deleted_object_is_gone(lab: Lab) -> None:
    lab.fill({b"d/f": b"x", b"d/g": b"y"})
    source = lab.source()
    old = ref(source, b"d/f")
    lab.delete(b"d/f")
    with pytest.raises(VersionGone):
        source.read(old, 0, 1)


def test_an_object_that_became_a_directory_is_gone(lab: Lab) -> None:
    lab.fill({b"v": b"file"})
    source = lab.source()
    old = ref(source, b"v")
    lab.delete(b"v")
    lab.fill({b"v/1": b"1"})
    with pytest.raises(VersionGone):
        source.read(old, 0, 4)


def test_a_version_stays_while_nothing_changes(lab: Lab) -> None:
    lab.fill({b"f": b"one", b"d/g": b"two"})
    source = lab.source()
    first = listed(source)[b"f"].version
    source.read(ref(source, b"f"), 0, 3)
    lab.fill({b"beside": b"x", b"d/h": b"y"})
    assert listed(source)[b"f"].version == source.stat(b"f").version == first
    assert lab.source().stat(b"f").version == first


def test_sixteen_readers_at_once_get_their_own_bytes(lab: Lab) -> None:
    bodies = {b"%d/f" % number: random.Random(number).randbytes(50_000 + number) for number in range(8)}
    lab.fill(bodies)
    source = lab.source()
    refs = {path: ref(source, path) for path in bodies}

    def read(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(12):
            path, body = choose.choice(list(bodies.items()))
            offset = choose.randrange(len(body))
            length = choose.randrange(len(body) - offset) + 1
            assert source.read(refs[path], offset, length) == body[offset : offset + length]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(read, range(16)))


def test_a_file_rewritten_in_place_is_gone(lab: Lab) -> None:
    """The file keeps its identity (fileid) and size; only its times tell."""
    if not isinstance(lab, FileLab):
        pytest.skip("objects are never rewritten in place")
    lab.fill({b"f": b"123456789"})
    source = lab.source()
    old = ref(source, b"f")
    source.read(old, 0, 9)
    with open(lab.root / "f", "r+b") as file:
        file.write(b"X")
    with pytest.raises(VersionGone):
        source.read(old, 4, 4)
    assert bytes(source.read(ref(source, b"f"), 0, 9)) == b"X23456789"


def test_encoded_content_is_read_as_it_is_stored(s3_lab: S3Lab) -> None:
    """Case 6: Content-Encoding: gzip changes neither size nor bytes nor ranges."""
    stored = gzip.compress(BODY, mtime=0)
    s3_lab.fill({b"f.gz": stored}, ContentEncoding="gzip", ContentType="text/plain")
    source = s3_lab.source()
    whole = ref(source, b"f.gz")
    assert whole.size == listed(source)[b"f.gz"].size == len(stored)
    assert source.read(whole, 0, len(stored)) == stored
    assert source.read(whole, 10, 1000) == stored[10:1010]
