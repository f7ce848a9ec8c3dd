"""Servers whose ETags are weak, or that give none: versions are told apart all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpufs.errors import VersionGone
from gpufs.source.base import Entry
from gpufs.source.s3 import S3Source
from tests.servers import BUCKET, ListingServer, S3Endpoint, listing_server

from .conftest import Make

# The second is a key that obstore cannot ask for: it is read by the signed client.
KEYS = [b"plain", b"tab\tx"]
LATER = 1_709_294_402


@pytest.fixture(params=['W/"{}"', ""], ids=["weak", "none"])
def served(
    request: pytest.FixtureRequest, aws_env: Callable[[S3Endpoint], None]
) -> Iterator[tuple[ListingServer, S3Endpoint]]:
    """A strict server: a weak ETag, or none, never matches an If-Match."""
    with listing_server(dict.fromkeys(KEYS, b"old bytes")) as (scripted, endpoint):
        scripted.tag = request.param
        aws_env(endpoint)
        yield scripted, endpoint


def entries(source: S3Source) -> dict[bytes, Entry]:
    return {entry.name: entry for page in source.list(b"") for entry in page.entries}


def test_a_listing_a_walk_and_a_look_give_one_version(
    served: tuple[ListingServer, S3Endpoint], make: Make
) -> None:
    scripted, endpoint = served
    source = make(endpoint.url, BUCKET).source
    walked = {entry.name: entry for pages in source.walk() for page in pages for entry in page.entries}
    for key in KEYS:
        version = entries(source)[key].version
        assert version == walked[key].version == source.stat(key).version
        assert version == (scripted.entity_tag(key) or "modified 1709294400 size 9")


@pytest.mark.parametrize("key", KEYS)
def test_a_version_is_read_whole_and_in_part(
    key: bytes, served: tuple[ListingServer, S3Endpoint], make: Make
) -> None:
    made = make(served[1].url, BUCKET)
    version = entries(made.source)[key].version
    assert made.read(key.decode(), version, 9) == b"old bytes"
    assert made.read(key.decode(), version, 9, 4, 5) == b"bytes"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("content", [b"new bytes", b"of another size"], ids=["same size", "other size"])
def test_a_replaced_object_gives_no_bytes_of_another_version(
    key: bytes, content: bytes, served: tuple[ListingServer, S3Endpoint], make: Make
) -> None:
    scripted, endpoint = served
    made = make(endpoint.url, BUCKET)
    old = entries(made.source)[key].version
    scripted.put(key, content, LATER)
    for offset, length in ((0, 9), (0, 4)):
        with pytest.raises(VersionGone):
            made.read(key.decode(), old, 9, offset, length)
    new = entries(made.source)[key]
    assert new.version != old
    assert made.read(key.decode(), new.version, new.size) == content
