"""The figures as Prometheus reads them: its own text format (0.0.4), and OpenMetrics 1.0.

https://prometheus.io/docs/instrumenting/exposition_formats/
https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
They differ in whether a counter's family is named with `_total`, and in the last line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpufs.metrics import BOUNDS, GAUGES, Metrics, Times
from gpufs.observe.figures import Figures

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_EVERY = 2  # every second bound is shown: 100 us, 200 us, 400 us, ...
_UP = ("up", "1 when the daemon of the mount answers.")
_BUILD = ("build", "The version of gpufs that serves the mount.")


@dataclass(frozen=True, slots=True)
class Family:
    """What stands for one figure of Metrics or GAUGES. `name` is without `_total`."""

    figure: str
    name: str
    type: str
    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A mount whose daemon does not answer."""

    mountpoint: str
    source: str


def families() -> list[Family]:
    """All there are, except `gpufs_up` and `gpufs_build_info`."""
    metrics = Metrics()
    counters = [
        _family(name, "counter", counter.unit, counter.help) for name, counter in metrics.counters.items()
    ]
    gauges = [_family(name, "gauge", unit, help) for name, (unit, help) in GAUGES.items()]
    histograms = [
        _family(name, "histogram", "seconds", histogram.help)
        for name, histogram in metrics.histograms.items()
    ]
    return counters + gauges + histograms


def _family(figure: str, type: str, unit: str, help: str) -> Family:
    unit = unit or ("bytes" if figure.endswith("_bytes") else "")
    name = f"gpufs_{figure}" if not unit or figure.endswith(f"_{unit}") else f"gpufs_{figure}_{unit}"
    return Family(figure, name, type, unit, help)


def render(mounts: Iterable[Figures | Silent], *, openmetrics: bool) -> str:
    mounts = list(mounts)
    answering = [mount for mount in mounts if isinstance(mount, Figures)]
    lines: list[str] = []
    name, help = _UP
    lines += _head(Family("", f"gpufs_{name}", "gauge", "", help), openmetrics)
    lines += [f"gpufs_{name}{_labels(mount)} {int(isinstance(mount, Figures))}" for mount in mounts]
    if answering:
        name, help = _BUILD
        family = Family("", f"gpufs_{name}" if openmetrics else f"gpufs_{name}_info", "info", "", help)
        lines += _head(family, openmetrics)
        lines += [f"gpufs_{name}_info{_labels(mount, version=mount.version)} 1" for mount in answering]
        for family in families():
            lines += _head(family, openmetrics)
            for figures in answering:
                lines += _samples(family, figures)
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _head(family: Family, openmetrics: bool) -> list[str]:
    if openmetrics:
        unit = [f"# UNIT {family.name} {family.unit}"] if family.unit else []
        return [f"# TYPE {family.name} {family.type}", *unit, f"# HELP {family.name} {family.help}"]
    name = f"{family.name}_total" if family.type == "counter" else family.name
    type = "gauge" if family.type == "info" else family.type
    return [f"# HELP {name} {family.help}", f"# TYPE {name} {type}"]


def _samples(family: Family, figures: Figures) -> Iterator[str]:
    if family.type == "counter":
        yield f"{family.name}_total{_labels(figures)} {figures.counters[family.figure]}"
    elif family.type == "gauge":
        yield f"{family.name}{_labels(figures)} {figures.gauges[family.figure]}"
    else:
        yield from _histogram(family.name, figures, figures.times[family.figure])


def _histogram(name: str, figures: Figures, times: Times) -> Iterator[str]:
    up_to: Sequence[int] = list(accumulate(times.buckets))
    for bound, count in list(zip(BOUNDS, up_to, strict=False))[::_EVERY]:
        yield f"{name}_bucket{_labels(figures, le=repr(bound))} {count}"
    yield f"{name}_bucket{_labels(figures, le='+Inf')} {up_to[-1]}"
    yield f"{name}_count{_labels(figures)} {up_to[-1]}"
    yield f"{name}_sum{_labels(figures)} {times.seconds}"


def _labels(mount: Figures | Silent, **more: str) -> str:
    pairs = {"mountpoint": mount.mountpoint, "source": mount.source, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    """A name may have any byte in it; the formats are UTF-8."""
    text = os.fsencode(value).decode(errors="backslashreplace")
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
