"""What a mount's daemon tells of itself at one moment; it goes through the control socket as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufs.metrics import GAUGES, Times


@dataclass(frozen=True, slots=True)
class Process:
    """One that has waited for this mount: seconds for bytes and for names, of all its threads together.

    `pid` is 0 when the kernel did not say who it was. `waiting`: threads of it that wait now.
    """

    pid: int
    command: str
    seconds: float
    names_seconds: float
    waits: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`when`: seconds of a clock that does not jump. The names in the dicts are those of gpufs.metrics."""

    mountpoint: str
    source: str
    version: str
    when: float
    started: str  # tells daemons of one mount apart: each begins to count at nothing
    source_error: str | None
    counters: Mapping[str, int]
    gauges: Mapping[str, float]
    times: Mapping[str, Times]
    processes: Sequence[Process]

    def __post_init__(self) -> None:
        assert self.gauges.keys() == GAUGES.keys()

    def to_json(self) -> dict[str, Any]:
        return {
            "mountpoint": self.mountpoint,
            "source": self.source,
            "version": self.version,
            "when": self.when,
            "started": self.started,
            "source_error": self.source_error,
            "counters": dict(self.counters),
            "gauges": dict(self.gauges),
            "times": {name: [times.seconds, *times.buckets] for name, times in self.times.items()},
            "processes": [
                {name: getattr(process, name) for name in Process.__slots__} for process in self.processes
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Figures:
        times = {name: Times(seconds, buckets) for name, (seconds, *buckets) in document["times"].items()}
        processes = [Process(**process) for process in document["processes"]]
        return cls(**{**document, "times": times, "processes": processes})
