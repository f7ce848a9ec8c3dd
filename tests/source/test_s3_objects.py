"""Names, bytes and versions of objects on real servers."""

from __future__ import annotations

import gzip
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpufs.errors import NotADirectory, NotFound, ObjectArchived, VersionGone
from gpufs.source.base import Entry, Kind, ObjectRef, Page
from gpufs.source.s3 import S3Source
from tests.servers import FaultProxy, S3Endpoint

from .conftest import Make

Bucket = Callable[[S3Endpoint], str]

ODD = [
    "folder#1#/x",
    "Hello World.jpg",
    "a+b",
    "%23",
    "pct%2Fenc",
    "q?x=1",
    "a&b<c>\"'",
    "\U0001f600",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "tilde~*",
    "100%",
    "%zz",
    "[b]{c}^|`",
    ":@,;=$!()",
    "..x",
    "x..",
    "tab\tx",
    "del\x7f",
]


def everything(source: S3Source) -> Iterator[tuple[bytes, Entry]]:
    for pages in source.walk():
        for page in pages:
            for entry in page.entries:
                yield (page.directory + b"/" if page.directory else b"") + entry.name, entry


def recursive(source: S3Source, directory: bytes = b"") -> Iterator[Page]:
    for page in source.list(directory):
        yield page
        for entry in page.entries:
            if entry.kind is Kind.DIRECTORY:
                yield from recursive(source, directory + b"/" + entry.name if directory else entry.name)


def test_odd_keys_keep_their_names_and_bytes(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    """Case 5: `/` and `\\` aside (SeaweedFS turns backslashes into slashes), every key comes back."""
    name = bucket(server)
    keys = [*ODD, "back\\slash"] if server.flat else ODD
    server.put(name, {key: b"body of " + key.encode() for key in keys})
    source = make(server.url, name).source
    found = {path: entry for path, entry in everything(source) if entry.kind is Kind.FILE}
    assert set(found) == {key.encode() for key in keys}
    for path, entry in found.items():
        ref = ObjectRef(path, entry.version, entry.size)
        assert bytes(source.read(ref, 0, entry.size)) == b"body of " + path
        assert bytes(source.read(ref, 3, 4)) == (b"body of " + path)[3:7]
        assert source.stat(path) == entry


def test_keys_no_path_can_name_are_told_and_the_rest_is_complete(
    moto: S3Endpoint, aws_env: Callable[[S3Endpoint], None], bucket: Bucket, make: Make
) -> None:
    """Cases 3 and 4, on a flat store."""
    aws_env(moto)
    name = bucket(moto)
    bad = ["exp2//a/b", "exp2//c", "exp2/./c", "exp2/../d", "/lead", "deep/" + "x" * 256]
    moto.put(name, dict.fromkeys([*bad, "exp2/ok", "out", "out/x"], b"1"))
    source = make(moto.url, name).source
    walked = [page for pages in source.walk() for page in pages]
    hidden = {(p.directory, h.name): h.count for p in walked for h in p.hidden}
    assert hidden == {
        (b"", b"/"): 1,
        (b"deep", b"x" * 256): 1,
        (b"exp2", b"/"): 2,
        (b"exp2", b"./"): 1,
        (b"exp2", b"../"): 1,
    }
    assert {path for path, _ in everything(source)} == {b"deep", b"exp2", b"exp2/ok", b"out", b"out/x"}
    listed = list(recursive(source))
    assert {(p.directory, h.name) for p in listed for h in p.hidden} == set(hidden)
    assert bytes(source.read(ObjectRef(b"exp2/ok", source.stat(b"exp2/ok").version, 1), 0, 1)) == b"1"


def test_a_prefix_obstore_cannot_spell_can_be_mounted(
    moto: S3Endpoint, aws_env: Callable[[S3Endpoint], None], bucket: Bucket, make: Make
) -> None:
    aws_env(moto)
    name = bucket(moto)
    versions = moto.put(name, {"a//./b/file": b"0123456789"})
    made = make(moto.url, name, b"a//./b")
    made.source.check()
    assert [path for path, _ in everything(made.source)] == [b"file"]
    version = versions["a//./b/file"]
    assert made.read("file", version, 10) == b"0123456789"
    assert made.read("file", version, 10, 2, 3) == b"234"
    with pytest.raises(VersionGone):
        made.read("file", "0" * 32, 10)
    with pytest.raises(VersionGone):
        made.read("gone", version, 10)


def test_an_overwritten_object_gives_no_bytes_of_another_version(
    server: S3Endpoint, bucket: Bucket, make: Make
) -> None:
    """Cases 1 and 2: same size, other bytes; and another size; and deleted."""
    name = bucket(server)
    old = server.put(name, {"k": b"a" * 1000})["k"]
    made = make(server.url, name)
    assert made.read("k", old, 1000, 10, 20) == b"a" * 20
    server.put(name, {"k": b"b" * 1000})
    for offset, length in ((0, 1000), (500, 100)):
        with pytest.raises(VersionGone):
            made.read("k", old, 1000, offset, length)
    server.put(name, {"k": b"c" * 10})
    with pytest.raises(VersionGone):
        made.read("k", old, 1000, 500, 100)
    server.client().delete_object(Bucket=name, Key="k")
    with pytest.raises(VersionGone):
        made.read("k", old, 1000)
    assert made.metrics.retries.value == 0


def test_compressed_objects_come_as_they_are_stored(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    """Case 6."""
    name = bucket(server)
    body = gzip.compress(b"text" * 1000)
    version = server.put(name, {"k.gz": body}, ContentEncoding="gzip")["k.gz"]
    made = make(server.url, name)
    assert made.source.stat(b"k.gz").size == len(body)
    assert made.read("k.gz", version, len(body)) == body
    assert made.read("k.gz", version, len(body), 1, 9) == body[1:10]


def test_archived_objects_are_refused_at_once_until_restored(
    moto: S3Endpoint,
    aws_env: Callable[[S3Endpoint], None],
    bucket: Bucket,
    make: Make,
    proxy: Callable[[S3Endpoint], FaultProxy],
) -> None:
    """Case 7 (moto knows storage classes, SeaweedFS does not)."""
    aws_env(moto)
    name = bucket(moto)
    version = moto.put(name, {"cold": b"ice"}, StorageClass="GLACIER")["cold"]
    between = proxy(moto)
    made = make(between.url, name)
    with pytest.raises(ObjectArchived, match=f"aws s3api restore-object --bucket {name} --key cold"):
        made.read("cold", version, 3)
    assert between.counts() == {"GET": 1}
    moto.client().restore_object(Bucket=name, Key="cold", RestoreRequest={"Days": 1})
    assert made.read("cold", version, 3) == b"ice"


def test_empty_objects_and_markers(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    """Case 16."""
    name = bucket(server)
    version = server.put(name, {"zero": b"", "d/": b"", "e/f/": b""})["zero"]
    made = make(server.url, name)
    found = {path: entry.kind for path, entry in everything(made.source)}
    assert found == {
        b"zero": Kind.FILE,
        b"d": Kind.DIRECTORY,
        b"e": Kind.DIRECTORY,
        b"e/f": Kind.DIRECTORY,
    }
    assert made.read("zero", version, 0) == b""
    assert [page.entries for page in made.source.list(b"d")] == [[]]
    assert made.source.stat(b"d").kind is Kind.DIRECTORY


def test_an_empty_bucket_is_an_empty_tree(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    source = make(server.url, bucket(server)).source
    source.check()
    root = Page(b"", [], [], last=True)
    assert list(source.list(b"")) == [root]
    assert [[replace(page, asked_ns=0) for page in batch] for batch in source.walk()] == [[root]]


def test_what_is_not_there_is_said(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    name = bucket(server)
    server.put(name, {"dir/file": b"1"})
    source = make(server.url, name).source
    for call in (lambda: source.stat(b"no"), lambda: list(source.list(b"no"))):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotADirectory):
        list(source.list(b"dir/file"))
    with pytest.raises(NotFound, match="names nothing"):
        make(server.url, name, b"di").source.check()
    with pytest.raises(NotFound, match="is an object, not a prefix"):
        make(server.url, name, b"dir/file").source.check()
    with pytest.raises(NotFound):
        list(make(server.url, name, b"di").source.walk())
    with pytest.raises(NotFound, match="no such bucket: no-such-bucket"):
        make(server.url, "no-such-bucket").source.check()


def test_listings_of_many_pages_cost_one_request_a_page(
    server: S3Endpoint, bucket: Bucket, make: Make, proxy: Callable[[S3Endpoint], FaultProxy]
) -> None:
    """Cases 9 and 15 in small."""
    name = bucket(server)
    server.put(name, {f"d{i:04d}/x": b"" for i in range(1100)})
    between = proxy(server)
    source = make(between.url, name).source
    assert sum(entry.kind is Kind.FILE for _, entry in everything(source)) == 1100
    # SeaweedFS counts directories as well and needs a few more
    assert set(between.counts()) == {"LIST"}
    assert between.counts()["LIST"] <= 4
    names = [entry.name for page in source.list(b"") for entry in page.entries]
    assert names == [b"d%04d" % i for i in range(1100)]
