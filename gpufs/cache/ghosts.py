"""When objects that are not in the cache were last wanted; in little memory, so some are forgotten."""

from __future__ import annotations

from array import array

_SLOTS = 1 << 18
_TICK_BITS = 44
_TICK_MASK = (1 << _TICK_BITS) - 1


class Ghosts:
    """Ticks by digest. A later object may take the place of an earlier one. Any thread."""

    def __init__(self) -> None:
        self._table: array[int] | None = None  # 2 MiB, in processes that need it

    def get(self, digest: bytes, clock: int) -> int | None:
        """The tick that was put, `clock` being one of the same 17 million million or so."""
        if self._table is None:
            return None
        head = int.from_bytes(digest[:8], "little")
        slot = self._table[head % _SLOTS]
        if slot >> _TICK_BITS != _fingerprint(head):
            return None
        return clock - ((clock - slot) & _TICK_MASK)

    def put(self, digest: bytes, tick: int) -> None:
        if self._table is None:
            self._table = array("Q", bytes(8 * _SLOTS))
        head = int.from_bytes(digest[:8], "little")
        self._table[head % _SLOTS] = _fingerprint(head) << _TICK_BITS | tick & _TICK_MASK


def _fingerprint(head: int) -> int:
    """20 bits, never 0, which an empty slot has."""
    return head >> 44 or 1
