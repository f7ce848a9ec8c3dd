"""Failures that took their whole deadline, remembered for a moment."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import trio

from gpufs.errors import GpufsError

FAILURE_HOLDS = 1.0  # seconds

K = TypeVar("K", bound=Hashable)


class RecentFailures(Generic[K]):
    """What has just failed fails at once for whoever asks next, instead of taking one more deadline."""

    def __init__(self) -> None:
        self._failures: dict[K, tuple[float, GpufsError]] = {}

    def note(self, key: K, error: GpufsError) -> None:
        self._failures[key] = (trio.current_time() + FAILURE_HOLDS, error)

    def raise_for(self, key: K) -> None:
        """Raise the failure of `key`, if there was one lately."""
        if self._failures:
            now = trio.current_time()
            self._failures = {
                k: (until, error) for k, (until, error) in self._failures.items() if until > now
            }
            if key in self._failures:
                raise self._failures[key][1]
