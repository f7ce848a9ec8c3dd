"""Figures made up for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpufs.metrics import GAUGES, Metrics
from gpufs.observe.figures import Figures, Process


def figures(
    when: float = 1000.0,
    *,
    counters: Mapping[str, int] | None = None,
    gauges: Mapping[str, float] | None = None,
    times: Mapping[str, Sequence[float]] | None = None,
    processes: Sequence[Process] = (),
    **about: Any,
) -> Figures:
    """All zero but for what is named; `times` are single observations in seconds."""
    metrics = Metrics()
    for name, values in (times or {}).items():
        for seconds in values:
            metrics.histograms[name].observe(seconds)
    for name, value in (counters or {}).items():
        metrics.counters[name].add(value)
    given = {"mountpoint": "/data", "source": "s3://bucket", "version": "1.0", "started": "1", **about}
    return Figures(
        **{"source_error": None, **given},
        when=when,
        counters=metrics.snapshot(),
        gauges=dict.fromkeys(GAUGES, 0.0) | dict(gauges or {}),
        times=metrics.times(),
        processes=processes,
    )
