"""The view of `gpufs top` at any size: everything it promises is there, and nothing breaks its lines."""

from __future__ import annotations

import re

import pytest

from gpufs.observe.figures import Process
from gpufs.observe.limit import Verdict
from gpufs.observe.rates import Interval
from gpufs.observe.screen import duration, size, span, view
from tests.unit.observe.helpers import figures

VERDICT = Verdict("remote latency", "7.6 readers wait 21 ms for each miss", "more readers; a warm-up")
GAUGES = {
    "uptime": 93_784, "files": 1_281_167, "directories": 1000, "tree_bytes": 150 << 30,
    "index_bytes": 90 << 20, "cache_bytes": 48 << 30, "cache_limit_bytes": 100 << 30,
    "cache_objects": 410_000, "requests_under_way": 9, "requests_under_way_bytes": 1 << 20,
    "requests_allowed": 512, "orders": 1, "warm_ups": 2,
}  # fmt: skip
COUNTERS = {
    "opens": 2000, "hits": 1850, "misses": 150, "passthrough_opens": 1800, "fast_path_opens": 20,
    "served_bytes": 200 << 20, "lookups": 2200, "remote_requests": 150, "remote_bytes": 15 << 20,
    "retries": 2, "prefetched": 100, "prefetched_used": 90, "prefetched_wasted": 10, "evictions": 4,
    "not_admitted": 6,
}  # fmt: skip
PROCESSES = [
    Process(4242, "python3", 123.4, 0.25, 1234, 1),
    Process(7, "evil\x1b[2J\nname", 0.5, 0.0, 1, 0),
]
BEFORE = figures(10.0, gauges=GAUGES, processes=[Process(4242, "python3", 121.5, 0.25, 1200, 1)])
NOW = figures(12.0, counters=COUNTERS, gauges=GAUGES, times={"miss_wait": [0.02] * 150}, processes=PROCESSES)
INTERVAL = Interval(BEFORE, NOW)
COLOUR = re.compile(r"\x1b\[\d+m")


def test_all_that_is_promised_is_there_at_80_by_24() -> None:
    lines = view(INTERVAL, VERDICT, 80, 24, colour=False)
    text = "\n".join(lines)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert lines[0].startswith("/data  s3://bucket") and lines[0].endswith("up 1d 2h")
    for part in (
        "limit   remote latency: 7.6 readers wait", "try     more readers; a warm-up",
        "opens   1,000/s  hits 92.5%  kernel 90.0%  fast path 1.0%  filesystem 1.5%", "served  100.0 MiB/s",
        "misses  75/s  wait p50", "p95", "p99", "1.5 readers wait",
        "remote  7.5 MiB/s  75 requests/s  9 of 512 on their way", "errors 0/s  repeats 1.0/s",
        "[##########..........] 48.0%", "48.0 GiB of 100.0 GiB", "evicted 2.0/s", "not kept 3.0/s",
        "ahead   fetched 50/s  used 45/s  evicted unused 5.0/s  worth it 90.0%", "orders 1", "warm-ups 2",
        "1,281,167 files",
    ):  # fmt: skip
        assert part in text, part
    rows = [line.split() for line in lines if line.lstrip().startswith(("4242", "7 "))]
    assert rows[0][:3] == ["4242", "python3", "95.0%"] and rows[0][-1] == "1,234"
    assert len(rows) == 2, "what a process calls itself stays in its line"


@pytest.mark.parametrize("width", [20, 40, 57, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 24, None])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal_and_no_more_come_than_it_has(
    width: int, height: int | None, colour: bool
) -> None:
    lines = view(INTERVAL, VERDICT, width, height, colour=colour)
    assert height is None or len(lines) <= height
    assert colour == any("\x1b" in line for line in lines)
    for line in lines:
        plain = COLOUR.sub("", line)
        assert len(plain) <= width and plain.isprintable()
        assert line == plain or line.endswith("\x1b[0m")


def test_what_does_not_fit_into_a_line_comes_in_the_next() -> None:
    text = "\n".join(view(INTERVAL, VERDICT, 40, None, colour=False))
    for part in ("each miss", "filesystem 1.5%", "on their way", "warm-ups 2", "index 90.0 MiB", "p99"):
        assert part in text, part


def test_a_mount_on_which_nothing_happens() -> None:
    lines = view(
        Interval(figures(1.0), figures(2.0)), Verdict("nothing", "all here", ""), 80, 24, colour=False
    )
    text = "\n".join(lines)
    assert "hits -" in text and "wait p50 -" in text and "no process has waited" in text
    assert not any(line.startswith("try") for line in lines)


def test_the_shared_cache_is_shown_where_there_is_one() -> None:
    before, now = figures(1.0), figures(2.0, counters={"shared_hits": 30}, gauges={"shared_cache": 1})
    lines = view(Interval(before, now), VERDICT, 80, None, colour=False)
    assert "shared  hits 30/s  misses 0/s" in lines
    assert not any(line.startswith("shared") for line in view(INTERVAL, VERDICT, 80, None, colour=False))


def test_numbers_for_people() -> None:
    assert [span(s) for s in (0, 59, 61, 3600, 90_061)] == ["0s", "59s", "1min 1s", "1h 0min", "1d 1h"]
    assert [size(n) for n in (0, 1023, 1024, 3 << 29)] == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]
    assert [duration(s) for s in (None, 0.0, 0.0004, 0.02, 1.5, 100)] == [
        "-", "0.0 s", "0.4 ms", "20 ms", "1.5 s", "1min 40s",
    ]  # fmt: skip
