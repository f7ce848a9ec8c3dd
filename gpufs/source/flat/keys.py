"""Keys as paths: which ones a path can name."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

from gpufs.source.base import Hidden

_NAME_MAX = 255  # Linux, bytes of one component


def fault_of(component: bytes) -> str | None:
    """Why no path can name `component`, in a few words for people; None when one can."""
    if component in (b"", b".", b".."):
        return f'a part of the key is "{component.decode()}"' if component else "a part of the key is empty"
    if len(component) > _NAME_MAX:
        return f"a part of the key is longer than {_NAME_MAX} bytes"
    if b"\0" in component:
        return "a part of the key has a NUL byte"
    return None


def split_key(key: bytes) -> tuple[list[bytes], bytes | None, Hidden | None]:
    """A key relative to the root as (directories, file name, None), or (directories, None, hidden).

    A directory marker (`d/`) has neither a file name nor a hidden. `directories` is the deepest
    path that can be named.
    """
    *directories, last = key.split(b"/")
    for depth, component in enumerate(directories):
        reason = fault_of(component)
        if reason is not None:
            return directories[:depth], None, Hidden(component + b"/", reason)
    if not last and directories:
        return directories, None, None
    reason = fault_of(last)
    if reason is not None:
        return directories, None, Hidden(last, reason)
    return directories, last, None


def quote_key(key: bytes) -> str:
    """The key as it stands in a URL: everything but unreserved characters and `/` escaped."""
    return quote_from_bytes(key, safe="/-_.~")
