"""The XML of a LIST answer (ListObjectsV2, encoding-type=url), parsed into values."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from gpufs.source.flat.listing import Listed, Listing, NotAListing
from gpufs.source.flat.versions import version_of


def parse_listing(body: bytes) -> Listing:
    """Parse a ListObjectsV2 answer. Raises NotAListing."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise NotAListing(f"not well-formed XML: {error}") from error
    space, brace, name = root.tag.rpartition("}")
    if name != "ListBucketResult":
        raise NotAListing(f"unexpected element <{name}>")
    space += brace
    decode = _unquote if root.findtext(space + "EncodingType") == "url" else str.encode
    token = root.findtext(space + "NextContinuationToken", "")
    more = root.findtext(space + "IsTruncated") == "true"
    if more and not token:
        raise NotAListing("truncated, but no token to go on with")
    names = tuple(space + name for name in ("Key", "Size", "LastModified", "ETag"))
    objects: list[Listed] = []
    try:
        for element in root.iterfind(space + "Contents"):
            key, size, modified, etag = [element.findtext(name, "") for name in names]
            length, mtime_ns = int(size), _nanoseconds(modified)
            objects.append(Listed(decode(key), length, mtime_ns, version_of(etag, mtime_ns, length)))
        prefixes = [
            decode(element.findtext(space + "Prefix", ""))
            for element in root.iterfind(space + "CommonPrefixes")
        ]
    except ValueError as error:
        raise NotAListing(f"a field that cannot be read: {error}") from error
    return Listing(objects, prefixes, token if more else None)


def _unquote(text: str) -> bytes:
    """Undo encoding-type=url: AWS writes a space as `+` and a plus as `%2B`."""
    if "+" in text:
        text = text.replace("+", " ")
    return unquote_to_bytes(text) if "%" in text else text.encode()


def _nanoseconds(text: str) -> int:
    """Nanoseconds since the epoch of an ISO 8601 UTC time; 0 for none."""
    if not text:
        return 0
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
