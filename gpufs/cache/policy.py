"""The choice of what to evict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from gpufs.cache.catalogue import Entry


class Purpose(Enum):
    """What an object is kept for."""

    DEMAND = "demand"  # a reader waits for it
    FILL = "fill"  # it may be wanted: nothing is evicted for it
    STAGE = "stage"  # it will be wanted soon, and known when: once read, its room is for others


class LeastRecentlyUsed:
    """Victims in the order of their last access; what is in use goes last."""

    def victims(
        self, oldest_first: Iterable[tuple[bytes, Entry]], wanted: int, in_use: Callable[[bytes, Entry], bool]
    ) -> list[bytes]:
        """Digests whose removal frees at least `wanted` bytes; fewer when there are no more."""
        chosen: list[bytes] = []
        spared: list[tuple[bytes, Entry]] = []
        for digest, entry in oldest_first:
            if wanted <= 0:
                return chosen
            if in_use(digest, entry):
                spared.append((digest, entry))
                continue
            chosen.append(digest)
            wanted -= entry.charge
        for digest, entry in spared:
            if wanted <= 0:
                break
            chosen.append(digest)
            wanted -= entry.charge
        return chosen
