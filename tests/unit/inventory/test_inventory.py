"""Inventories and plain lists: every object of them that is there, as a listing would tell it."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote_from_bytes

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gpufs.errors import MountFailed
from gpufs.inventory import Inventory, open_inventory, order
from gpufs.source import Kind, Source
from gpufs.source.flat.listing import Listed
from tests.unit.source_s3.test_tree import KEYS, listed, tree_of, walk

ETAG = "d41d8cd98f00b204e9800998ecf8427e"
TIME, TIME_NS = "2024-03-01T12:00:00.000Z", 1_709_294_400_000_000_000
SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"


def no_bucket(url: str) -> Source:
    raise AssertionError(f"{url} was opened")


def opened(path: Path) -> Inventory:
    return open_inventory(str(path), "data", no_bucket, path.parent)


def objects(path: Path) -> list[Listed]:
    return list(opened(path).objects())


def plain(tmp_path: Path, text: str, name: str = "list.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def manifest(
    tmp_path: Path, bodies: dict[str, bytes], form: str = "CSV", md5: str | None = None, **changes: object
) -> Path:
    """As S3 lays it out: the data files in `data/` beside the directory of the manifest."""
    (tmp_path / "data").mkdir(exist_ok=True)
    entries = []
    for name, body in bodies.items():
        (tmp_path / "data" / name).write_bytes(body)
        digest = md5 or hashlib.md5(body).hexdigest()
        entries.append({"key": f"in/data/cfg/data/{name}", "size": len(body), "MD5checksum": digest})
    document = {
        "sourceBucket": "data",
        "destinationBucket": "arn:aws:s3:::elsewhere",
        "version": "2016-11-30",
        "creationTimestamp": "1709300000000",
        "fileFormat": form,
        "fileSchema": SCHEMA,
        "files": entries,
    }
    path = tmp_path / "2024-03-01T13-33Z" / "manifest.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document | changes))
    return path


def csv_file(rows: Iterable[Sequence[str]]) -> bytes:
    return gzip.compress("".join(",".join(f'"{v}"' for v in row) + "\n" for row in rows).encode())


def row(key: str, latest: str = "true", marker: str = "false", etag: str = ETAG) -> list[str]:
    return ["data", key, "v1", latest, marker, "5", TIME, etag, "GLACIER"]


def test_an_inventory_in_csv_shows_the_latest_versions(tmp_path: Path) -> None:
    """Keys are decoded, older versions and deleted objects left out, archived ones kept."""
    one = csv_file([row("a+b%2Fc/x"), row("old", latest="false"), row("gone", marker="true")])
    two = csv_file([row("d/caf%C3%A9%2B")])
    path = manifest(tmp_path, {"1.csv.gz": one, "2.csv.gz": two})
    assert objects(path) == [
        Listed(b"a b/c/x", 5, TIME_NS, ETAG),
        Listed("d/café+".encode(), 5, TIME_NS, ETAG),
    ]
    assert opened(path).time_ns == 1_709_300_000_000_000_000


def test_an_inventory_in_parquet_says_the_same(tmp_path: Path) -> None:
    """There keys are not encoded."""
    table = pyarrow.table(
        {
            "bucket": ["data"] * 3,
            "key": ["a b/%41", "old", "gone"],
            "is_latest": [True, False, True],
            "is_delete_marker": [False, False, True],
            "size": pyarrow.array([5, 5, None], pyarrow.int64()),
            "last_modified_date": pyarrow.array([TIME_NS // 10**6] * 3, pyarrow.timestamp("ms", "UTC")),
            "e_tag": [ETAG, ETAG, None],
        }
    )
    file = tmp_path / "x.parquet"
    parquet.write_table(table, file)
    path = manifest(tmp_path, {"1.parquet": file.read_bytes()}, "Parquet", fileSchema="message s3.inventory")
    assert objects(path) == [Listed(b"a b/%41", 5, TIME_NS, ETAG)]


@pytest.mark.parametrize(
    "text",
    [
        f"a/x,5,{ETAG},{TIME}\n",
        f'a/x,5,"""{ETAG}""",1709294400\r\n',
        f"size,etag,key,mtime,note\n5,{ETAG},a/x,2024-03-01T12:00:00+00:00,n\n\n",
    ],
)
def test_plain_lists(tmp_path: Path, text: str) -> None:
    """With a line of names or without, packed or not."""
    expected = [Listed(b"a/x", 5, TIME_NS, ETAG)]
    assert objects(plain(tmp_path, text)) == expected
    packed = tmp_path / "list.csv.zst"
    packed.write_bytes(zstandard.compress(text.encode()))
    assert objects(packed) == expected
    packed = tmp_path / "list.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert objects(packed) == expected


def test_without_an_etag_the_version_is_that_of_a_listing_without_one(tmp_path: Path) -> None:
    [found] = objects(plain(tmp_path, f"a,5,,{TIME}\n"))
    assert found.version == f"modified {TIME_NS // 10**9} size 5"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b,x,e", "invalid literal"),
        ("b,-1,e", "negative"),
        (",1,e", "the key is empty"),
        ("b,1", "2 columns in place of 3"),
        ("b,1,", "neither an ETag nor a time"),
        ('b,1,"e', "unexpected end"),
        ("b,1,\udcff", "decode"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(f"a,1,e\n{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(MountFailed, match=rf"list\.csv, line \d: .*{why}"):
        objects(path)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    body = gzip.compress(b"a,1,e\n" * 1000)
    path = tmp_path / "list.csv.gz"
    path.write_bytes(body[:-20])
    with pytest.raises(MountFailed, match=r"list\.csv\.gz"):
        objects(path)
    whole = csv_file([row("a")])
    with pytest.raises(MountFailed, match="MD5 is another"):
        objects(manifest(tmp_path, {"1.csv.gz": whole}, md5="0" * 32))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sourceBucket": "other"}, "an inventory of the bucket other, not of data"),
        ({"fileFormat": "ORC"}, "choose CSV or Parquet"),
        ({"files": None}, "no manifest of S3 Inventory"),
        ({"fileSchema": "Bucket, Key"}, "no column 'size'"),
        ({"files": [{"key": "no/such.csv.gz"}]}, "No such file"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    path = manifest(tmp_path, {"1.csv.gz": csv_file([row("a")])}, **changes)
    with pytest.raises(MountFailed, match=why):
        objects(path)


def test_only_what_is_below_the_prefix_and_something_must_be(tmp_path: Path) -> None:
    inventory = opened(plain(tmp_path, "a/x,1,e\nab/y,1,e\na/d/z,1,e\n"))
    tree = tree_of(page for batch in inventory.walk(b"a/") for page in batch)
    assert {d: [e.name for e in entries] for d, (entries, _) in tree.items()} == {
        b"": [b"d", b"x"],
        b"d": [b"z"],
    }
    with pytest.raises(MountFailed, match="no key in it starts with 'c/'"):
        list(inventory.walk(b"c/"))


@pytest.mark.parametrize("run", [1, 3, 1000])
@given(keys=KEYS, seed=st.integers())
def test_an_inventory_in_any_order_gives_the_tree_of_a_listing(
    run: int, keys: set[bytes], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also when it does not fit into memory; keys that no path can name are hidden and counted."""
    tmp_path = tmp_path_factory.mktemp("inventory")
    items = listed(keys)
    random.Random(seed).shuffle(items)
    path = tmp_path / "list.csv"
    path.write_text(
        "".join(f"{quote_from_bytes(i.key)},{i.size},{i.version},0.000000005\n" for i in items)
        or "key,size,etag,mtime\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_RUN", run)
        found = tree_of(page for batch in opened(path).walk(b"") for page in batch)
    batches, _ = walk(sorted(keys), 1000)
    assert found == tree_of(page for pages in batches for page in pages)


@pytest.mark.parametrize("run", [1, 2, 1000])
def test_of_several_rows_with_one_key_the_latest_counts(
    run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_RUN", run)
    rows = [
        Listed(b"b", 1, 5, "x"),
        Listed(b"a", 1, 5, "old"),
        Listed(b"b", 2, 9, "y"),
        Listed(b"b", 3, 7, "z"),
    ]
    assert list(order.in_order(rows, tmp_path)) == [Listed(b"a", 1, 5, "old"), Listed(b"b", 2, 9, "y")]


def test_a_name_that_is_a_file_and_a_directory_comes_as_both(tmp_path: Path) -> None:
    inventory = opened(plain(tmp_path, "out,1,e\nout/x,1,e\n"))
    entries = [entry for batch in inventory.walk(b"") for page in batch for entry in page.entries]
    assert [(e.name, e.kind) for e in entries if e.name == b"out"] == [
        (b"out", Kind.FILE),
        (b"out", Kind.DIRECTORY),
    ]
