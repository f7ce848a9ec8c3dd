"""Which keys obstore can fetch unchanged."""

from __future__ import annotations

_CONTROL = bytes(range(32)) + b"\x7f"


def plain_text(key: bytes) -> str | None:
    """The key as text when obstore asks for exactly this key, else None.

    obstore (object_store's Path) refuses empty, `.` and `..` components and ASCII control
    characters, silently strips a leading and a trailing slash, and cannot be given non-UTF-8.
    Everything else it percent-encodes as S3 wants it (tested against SeaweedFS and moto).
    """
    if key[:1] in (b"", b"/") or key[-1:] == b"/" or len(key.translate(None, _CONTROL)) != len(key):
        return None
    padded = b"/" + key + b"/"
    if b"//" in padded or b"/./" in padded or b"/../" in padded:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
