"""The XML of a LIST answer (ListObjectsV2, encoding-type=url), parsed straight into values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from xml.parsers.expat import ExpatError, ParserCreate


class Listed(NamedTuple):
    """One object of a listing; `etag` has no quotes."""

    key: bytes
    size: int
    mtime_ns: int
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One LIST answer; `token` continues it, None when it was the last one."""

    objects: list[Listed]
    prefixes: list[bytes]
    token: str | None


class NotAListing(ValueError):
    """The text is not the XML of a complete LIST answer."""


def parse_listing(body: bytes) -> Listing:
    """Parse a ListObjectsV2 answer. Raises NotAListing."""
    objects: list[tuple[str, str, str, str]] = []
    prefixes: list[str] = []
    token = ""
    flags: dict[str, str] = {}
    text: list[str] = []
    depth = 0
    root = key = modified = etag = size = prefix = ""

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal depth, root, key, modified, etag, size, prefix
        depth += 1
        text.clear()
        if depth == 1:
            root = name
        elif depth == 2:
            key = modified = etag = size = prefix = ""

    def end(name: str) -> None:
        nonlocal depth, key, modified, etag, size, prefix, token
        depth -= 1
        if depth == 2:
            if name == "Key":
                key = "".join(text)
            elif name == "LastModified":
                modified = "".join(text)
            elif name == "ETag":
                etag = "".join(text)
            elif name == "Size":
                size = "".join(text)
            elif name == "Prefix":
                prefix = "".join(text)
        elif depth == 1:
            if name == "Contents":
                objects.append((key, size, modified, etag))
            elif name == "CommonPrefixes":
                prefixes.append(prefix)
            elif name in ("IsTruncated", "NextContinuationToken", "EncodingType"):
                flags[name] = "".join(text)
        text.clear()

    parser = ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    try:
        parser.Parse(body, True)
    except ExpatError as error:
        raise NotAListing(f"not well-formed XML: {error}") from error
    if root != "ListBucketResult":
        raise NotAListing(f"unexpected element <{root}>")
    decode = _unquote if flags.get("EncodingType") == "url" else str.encode
    token = flags.get("NextContinuationToken", "")
    if flags.get("IsTruncated") == "true" and not token:
        raise NotAListing("truncated, but no token to go on with")
    try:
        return Listing(
            [Listed(decode(k), int(s), _nanoseconds(m), e.strip('"')) for k, s, m, e in objects],
            [decode(p) for p in prefixes],
            token if flags.get("IsTruncated") == "true" else None,
        )
    except ValueError as error:
        raise NotAListing(f"a field that cannot be read: {error}") from error


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
