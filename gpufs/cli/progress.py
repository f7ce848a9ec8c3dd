"""How far a warm-up is, for people: one line that changes on a terminal, else a line now and then."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from types import TracebackType
from typing import Any

from gpufs.cli.output import counted, size_text

LINE_S = 5.0  # between two lines where there is no terminal
RATE_S = 10.0  # over which the rate is measured
BAR = 24  # characters


class Progress:
    """On stderr. A context manager: the terminal's line is whole again at the end."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._samples: deque[tuple[float, int]] = deque()  # when, and the bytes fetched until then
        self._last: float | None = None
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, report: dict[str, Any], now: float) -> None:
        """Show `report`, as the daemon gives it, at the time `now` in seconds."""
        if self._quiet:
            return
        self._samples.append((now, report["fetched_bytes"]))
        while now - self._samples[0][0] > RATE_S:
            self._samples.popleft()
        if self._last is None:
            self._last = now
        if self._terminal:
            width = shutil.get_terminal_size().columns
            sys.stderr.write("\r" + self._text(report)[: width - 1].ljust(width - 1))
            self._drawn = True
        elif now - self._last >= LINE_S:
            self._last = now
            sys.stderr.write(self._text(report) + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the terminal's line away, for other text."""
        if self._drawn:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()
            self._drawn = False

    def _text(self, report: dict[str, Any]) -> str:
        if report["state"] in ("naming", "counting"):
            return f"counting: {counted(report['files'], 'file')}, {size_text(report['bytes'])}"
        if report["state"] == "checking":
            return "checking what is cached now"
        rate = self._rate()
        share = report["cached_bytes"] / report["bytes"] if report["bytes"] else 1.0
        bar = "#" * int(BAR * share)
        left = report["bytes"] - report["cached_bytes"]
        time_left = f", {_clock(left / rate)} left" if rate else ""
        files = f"{report['cached']:,} of {counted(report['files'], 'file')}"
        return (
            f"[{bar:.<{BAR}}] {100 * share:3.0f}%  {files}, "
            f"{size_text(report['cached_bytes'])} of {size_text(report['bytes'])}, "
            f"{size_text(int(rate))}/s{time_left}"
        )

    def _rate(self) -> float:
        """Bytes fetched per second lately."""
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - began) if now > began else 0.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
