"""One answer of a flat store to a request for its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Listed(NamedTuple):
    """One object of a listing."""

    key: bytes
    size: int
    mtime_ns: int
    version: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One LIST answer; `token` continues it, None when it was the last one."""

    objects: list[Listed]
    prefixes: list[bytes]
    token: str | None


class NotAListing(ValueError):
    """The text is not a complete LIST answer."""
