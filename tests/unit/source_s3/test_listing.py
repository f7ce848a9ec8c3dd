"""The XML of LIST answers: every key exactly as stored, and nothing accepted that is not a listing."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.source.flat.listing import Listed, NotAListing
from gpufs.source.s3.listing import parse_listing

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
)


def page(body: str, encoding: str = "<EncodingType>url</EncodingType>") -> bytes:
    return f"{HEAD}{encoding}<Prefix>p%2F</Prefix>{body}</ListBucketResult>".encode()


def contents(key: str, size: str = "3", time: str = "2026-11-30T16:35:33.250Z") -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>&quot;abc-2&#34;</ETag>"
        f"<Size>{size}</Size><Owner><ID>o</ID></Owner><StorageClass>STANDARD</StorageClass></Contents>"
    )


def test_an_object_is_read_with_all_its_fields() -> None:
    listing = parse_listing(page(contents("a%2Fb")))
    assert listing.objects == [Listed(b"a/b", 3, 1_796_056_533_250_000_000, "abc-2")]
    assert listing.token is None


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("a+b", b"a b"),
        ("a%20b", b"a b"),
        ("a%2Bb", b"a+b"),
        ("%2523", b"%23"),
        ("pct%252Fenc", b"pct%2Fenc"),
        ("%0A%00%FF", b"\n\0\xff"),
        ("a&amp;b&lt;", b"a&b<"),
        ("%C3%A9", "é".encode()),
        ("é", "é".encode()),
    ],
)
def test_keys_are_decoded_exactly(written: str, key: bytes) -> None:
    listing = parse_listing(
        page(contents(written) + f"<CommonPrefixes><Prefix>{written}</Prefix></CommonPrefixes>")
    )
    assert listing.objects[0].key == key
    assert listing.prefixes == [key]


def test_keys_are_taken_as_they_are_when_the_server_does_not_encode() -> None:
    assert parse_listing(page(contents("a+b%20"), encoding="")).objects[0].key == b"a+b%20"


@given(st.binary(min_size=1, max_size=60))
def test_any_key_survives_url_encoding(key: bytes) -> None:
    assert parse_listing(page(contents(quote_plus(key)))).objects[0].key == key


def test_the_token_is_given_as_the_server_wrote_it() -> None:
    body = "<IsTruncated>true</IsTruncated><NextContinuationToken>1+a%2F/b=</NextContinuationToken>"
    assert parse_listing(page(body)).token == "1+a%2F/b="


def test_a_token_after_the_last_page_is_ignored() -> None:
    body = "<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    assert parse_listing(page(body)).token is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>login</body></html>",
        b"<Error><Code>InternalError</Code></Error>",
        page(contents("a"))[:-30],
        page("<IsTruncated>true</IsTruncated>"),
        page(contents("a", size="many")),
        page(contents("a", time="yesterday")),
    ],
    ids=["empty", "html", "error", "cut", "no-token", "size", "time"],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(NotAListing):
        parse_listing(body)
