"""What tells two versions of an object apart: its ETag, or what there is where a server gives none.

A strong ETag goes without its quotes. A weak one stays as it is, `W/"..."`. Without one, the version is the
time of the last modification, in seconds, and the size.
"""

from __future__ import annotations

import base64

_NO_ETAG = "modified "


def version_of(etag: str, mtime_ns: int, size: int) -> str:
    """The version of an object whose listing or answer has this ETag, perhaps none, as it was sent."""
    if etag.startswith("W/"):
        return etag
    # Whole seconds: that is all the header Last-Modified of a GET has.
    return etag.strip('"') or f"{_NO_ETAG}{mtime_ns // 1_000_000_000} size {size}"


def condition(version: str) -> str | None:
    """The If-Match that asks for this version; None where it could only ever be refused.

    If-Match compares strongly, and a weak ETag is equal to nothing then (RFC 9110, 13.1.1).
    """
    return None if version.startswith(("W/", _NO_ETAG)) else f'"{version}"'


def is_same(version: str, etag: str, mtime_ns: int, size: int) -> bool:
    """Whether an answer with this ETag, time and size is of that version."""
    if version.startswith(_NO_ETAG):  # some servers leave the ETag out of their listings only
        return version == version_of("", mtime_ns, size)
    if version.startswith("W/"):
        return version.removeprefix("W/").strip('"') == etag.removeprefix("W/").strip('"')
    return version == version_of(etag, mtime_ns, size)


_MD5 = " md5 "


def with_md5(tag: str, md5: str) -> str:
    """The version `tag` with the MD5 of the bytes that the store keeps of it, in base64, perhaps none."""
    return f"{tag}{_MD5}{base64.b64decode(md5).hex()}" if md5 else tag


def split_md5(version: str) -> tuple[str, str]:
    """What was given to with_md5, the MD5 in hex digits, empty for none."""
    tag, _, md5 = version.partition(_MD5)
    return tag, md5
