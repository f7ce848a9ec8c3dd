"""Checksums the server keeps of a whole object, and whether received bytes match them."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping

Buffer = memoryview | bytes

_MD5 = re.compile("[0-9a-f]{32}")
# An ETag is no MD5 under these (it is one with AES256):
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
_KEYED = ("aws:kms", "aws:kms:dsse")
_STORED: Mapping[str, Callable[[Buffer], bytes]] = {
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
}


def looks_like_md5(etag: str) -> bool:
    return _MD5.fullmatch(etag) is not None


def is_md5(data: Buffer, etag: str) -> bool:
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == etag


def etag_is_keyed(headers: Mapping[str, str]) -> bool:
    """True when a HEAD answer says that the object is encrypted in a way that makes its ETag no MD5."""
    return (
        headers.get("x-amz-server-side-encryption") in _KEYED
        or "x-amz-server-side-encryption-customer-algorithm" in headers
    )


def matches_stored(data: Buffer, headers: Mapping[str, str]) -> bool | None:
    """Whether `data` has the checksum of a HEAD answer; None when that has none that can be computed."""
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    for name, digest in _STORED.items():
        value = headers.get(name)
        if value and "-" not in value:  # "-N": a checksum of the checksums of N parts
            return base64.b64encode(digest(data)).decode() == value
    return None
