"""Failures of the cache that no reader may notice: each is counted, each kind is logged once."""

from __future__ import annotations

import logging

from gpufs.metrics import Metrics

log = logging.getLogger("gpufs.cache")


class Failures:
    """Where every bypassed error of the cache is reported; any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, object]] = set()

    def report(self, doing: str, error: Exception) -> None:
        """Count `error`, and log it when it is the first of its kind for this operation."""
        self._metrics.cache_errors.add()
        kind = (doing, getattr(error, "errno", None) or type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning(
                "%s failed, going on without the cache: %s (logged once, counted in cache_errors)",
                doing,
                error,
            )
