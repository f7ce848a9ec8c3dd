"""An index that was filled from an inventory is the one that a listing would have made."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest

from gpufs.errors import MountFailed
from gpufs.fill import fill
from gpufs.index import ROOT, Index, take_in
from gpufs.metrics import Metrics
from gpufs.options import MountConfig, parse_options
from gpufs.source import open_configured
from tests.servers import BUCKET, ListingServer, S3Endpoint, listing_server

OBJECTS = {b"p/%d/%02d.jpg" % (n % 3, n): b"%d" % n for n in range(50)} | {
    b"p/a b+c": b"1",
    b"p/..x//y": b"hidden",
    b"p/d/": b"",
    b"q/z": b"elsewhere",
}


def config_of(server: S3Endpoint, tmp_path: Path, **more: str) -> MountConfig:
    settings = {"endpoint_url": server.url, "region": "us-east-1", "cache_dir": str(tmp_path / "cache")}
    return MountConfig(f"s3://{BUCKET}/p", str(tmp_path), parse_options(settings | more)[0])


def rows_of(scripted: ListingServer) -> str:
    text = io.StringIO()
    for key in reversed(scripted.keys):
        row = quote_from_bytes(key), scripted.size(key), scripted.entity_tag(key), scripted.modified
        csv.writer(text).writerow(row)
    return text.getvalue()


def index_of(config: MountConfig) -> Index:
    source_id = open_configured(config, Metrics()).id
    [directory] = (config.options.cache_dir / "index").iterdir()
    return Index(directory, source_id)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")


@pytest.mark.parametrize("tag", ["{}", 'W/"{}"', ""], ids=["strong", "weak", "none"])
def test_a_listing_afterwards_changes_nothing(tag: str, tmp_path: Path) -> None:
    """Be there ETags or not: versions are those of a listing, or every file would be fetched anew."""
    with listing_server(OBJECTS) as (scripted, server):
        scripted.tag = tag
        path = tmp_path / "list.csv"
        path.write_text(rows_of(scripted))
        config = config_of(server, tmp_path, index_from=str(path))
        assert fill(config) is not None
        assert not scripted.counts, "nothing is asked of the server"
        source = open_configured(config, Metrics())
        index = index_of(config)
        totals, inode = index.totals(), index.resolve(b"a b+c")
        assert (index.crawled(), totals.files, totals.directories, totals.hidden) == (True, 51, 5, 1)
        assert take_in(index, source.walk(), time.time_ns) == 0
        assert (index.totals(), index.resolve(b"a b+c")) == (totals, inode)
        index.close()
        source.close()


def test_one_that_is_older_than_what_is_known_is_left_alone(tmp_path: Path) -> None:
    with listing_server(OBJECTS) as (scripted, server):
        path = tmp_path / "list.csv"
        path.write_text(rows_of(scripted))
        config = config_of(server, tmp_path, index_from=str(path))
        assert fill(config) is not None
        path_ns = path.stat().st_mtime_ns
        assert fill(config) is None
        index = index_of(config)
        listed = index.listed(ROOT)
        assert listed is not None and listed.at_ns == path_ns, "as fresh as the list, and not as its reading"
        index.close()


def test_a_list_with_a_mistake_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    with listing_server(OBJECTS) as (scripted, server):
        path = tmp_path / "list.csv"
        path.write_text(rows_of(scripted) + "p/last,what,e,1\n")
        config = config_of(server, tmp_path, index_from=str(path))
        with pytest.raises(MountFailed, match=f"line {len(OBJECTS) + 1}: "):
            fill(config)
        index = index_of(config)
        assert (index.crawled(), index.listed(ROOT), index.totals().files) == (False, None, 0)
        index.close()


def test_it_is_for_object_stores(tmp_path: Path) -> None:
    options, _ = parse_options({"index_from": "/none", "cache_dir": str(tmp_path / "cache")})
    with pytest.raises(MountFailed, match="is for object stores"):
        fill(MountConfig(str(tmp_path), str(tmp_path), options))
