"""What a mount's daemon tells of itself at one moment; it goes through the control socket as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufs.errors import GpufsError
from gpufs.metrics import GAUGES, Metrics, Times

_PLAIN = "mountpoint source version when started source_error".split()


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

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "counters": dict(self.counters),
            "gauges": dict(self.gauges),
            "times": {name: [times.seconds, *times.buckets] for name, times in self.times.items()},
            "processes": [
                {name: getattr(process, name) for name in Process.__slots__} for process in self.processes
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Figures:
        """What a daemon of another version does not tell is zero. Raises GpufsError if that is too much."""
        none = Metrics()
        try:
            times = {name: Times(seconds, buckets) for name, (seconds, *buckets) in document["times"].items()}
            return cls(
                **{name: document[name] for name in _PLAIN},
                counters=none.snapshot() | document["counters"],
                gauges=dict.fromkeys(GAUGES, 0) | document["gauges"],
                times=none.times() | times,
                processes=[
                    Process(**{name: process[name] for name in Process.__slots__})
                    for process in document["processes"]
                ],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise GpufsError(
                "the daemon is of another version of gpufs; bring it to this one with gpufs restart"
            ) from error
