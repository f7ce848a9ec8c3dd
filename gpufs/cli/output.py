"""How the commands talk to people: one-line messages on stderr, names made printable."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    print(f"gpufs: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` with control characters and the bytes that are not UTF-8 made visible."""
    clean = os.fsencode(text).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in clean)
