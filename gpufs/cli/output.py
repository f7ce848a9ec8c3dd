"""How the commands talk to people: one-line messages on stderr, names and numbers made readable."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    print(f"gpufs: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` with control characters and the bytes that are not UTF-8 made visible."""
    clean = os.fsencode(text).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in clean)


def counted(number: int, one: str, more: str | None = None) -> str:
    """`1 file`, `1,000 files`; `more` is the plural where it does not just end in s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def size_text(amount: int) -> str:
    """Bytes in the largest unit of which there is at least one."""
    if amount < 1024:
        return f"{amount} B"
    power = min((amount.bit_length() - 1) // 10, 5)
    return f"{amount / 1024**power:,.2f} {'KMGTP'[power - 1]}iB"
