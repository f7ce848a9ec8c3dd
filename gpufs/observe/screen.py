"""The view of `gpufs top`: a text of some width and height, from two moments of a mount."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufs.observe.figures import Figures
from gpufs.observe.limit import Verdict
from gpufs.observe.rates import Interval, Stall, Summary, summary

BAR = 20  # characters
_LABEL = 8
_MORE, _PLAIN = "\x1b[1m", "\x1b[0m"
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


@dataclass(frozen=True, slots=True)
class Line:
    """`colour`: of the whole line, where the terminal has colours."""

    text: str
    colour: str = ""


def view(interval: Interval, verdict: Verdict, width: int, height: int | None, *, colour: bool) -> list[str]:
    """At most `height` lines of at most `width` characters. `verdict`: over a longer time, perhaps."""
    now, sums = interval.now, summary(interval)
    lines = [
        *_title(now, width),
        *_wrapped("limit", f"{verdict.what}: {verdict.why}".split(), width, _MORE + _colour_of(verdict), " "),
        *(_wrapped("try", verdict.advice.split(), width, joint=" ") if verdict.advice else []),
        Line(""),
        *_rows(now, sums, width),
        Line(""),
        *_stalls(sums.stalls, width),
    ]
    return [_painted(line, width, colour=colour) for line in lines[:height]]


def _title(now: Figures, width: int) -> list[Line]:
    up = f"up {span(now.gauges['uptime'])}"
    names = f"{visible(now.mountpoint)}  {visible(now.source)}"
    if len(names) + len(up) + 2 <= width:
        return [Line(names.ljust(width - len(up)) + up, _MORE)]
    return [Line(names, _MORE), Line(up)]


def _colour_of(verdict: Verdict) -> str:
    return {"nothing": _GREEN, "the source fails": _RED}.get(verdict.what, _YELLOW)


def _rows(now: Figures, sums: Summary, width: int) -> list[Line]:
    gauges = now.gauges
    fill = gauges["cache_bytes"] / gauges["cache_limit_bytes"] if gauges["cache_limit_bytes"] else 0.0
    rows = {
        "opens": f"{number(sums.opens)}/s|hits {percent(sums.hit_ratio)}|kernel {percent(sums.kernel_share)}"
        f"|fast path {percent(sums.fast_path_share)}|filesystem {percent(sums.filesystem_share)}",
        "served": f"{size(sums.served_bytes)}/s",
        "misses": f"{number(sums.misses)}/s|wait p50 {duration(sums.miss_p50)}|p95 {duration(sums.miss_p95)}"
        f"|p99 {duration(sums.miss_p99)}|{sums.waiting:.1f} readers wait",
        "remote": f"{size(sums.remote_bytes)}/s|{number(sums.requests)} requests/s"
        f"|{gauges['requests_under_way']:.0f} of {gauges['requests_allowed']:.0f} on their way"
        f"|{size(gauges['requests_under_way_bytes'])}|p50 {duration(sums.fetch_p50)}",
        "trouble": f"errors {number(sums.errors)}/s|repeats {number(sums.retries)}/s"
        f"|source too busy {number(sums.throttled)}/s",
        "cache": f"[{'#' * round(BAR * min(fill, 1.0)):.<{BAR}}] {percent(fill)}"
        f"|{size(gauges['cache_bytes'])} of {size(gauges['cache_limit_bytes'])}"
        f"|{gauges['cache_objects']:,.0f} objects|evicted {number(sums.evictions)}/s"
        f"|not kept {number(sums.not_admitted)}/s",
        "ahead": f"fetched {number(sums.prefetched)}/s|used {number(sums.prefetched_used)}/s"
        f"|evicted unused {number(sums.prefetched_wasted)}/s|worth it {percent(sums.prefetch_value)}"
        f"|orders {gauges['orders']:.0f}|warm-ups {gauges['warm_ups']:.0f}",
        "names": f"{number(sums.lookups)}/s|listings {number(sums.listings)}/s"
        f"|{sums.names_waiting:.1f} readers wait|{gauges['files']:,.0f} files"
        f"|{size(gauges['tree_bytes'])}|index {size(gauges['index_bytes'])}",
    }
    if gauges["shared_cache"]:
        rows["shared"] = f"hits {number(sums.shared_hits)}/s|misses {number(sums.shared_misses)}/s"
    colours = {"trouble": _RED} if sums.errors + sums.retries + sums.throttled else {}
    return [
        line
        for label, text in rows.items()
        for line in _wrapped(label, text.split("|"), width, colours.get(label, ""))
    ]


def _wrapped(label: str, cells: Sequence[str], width: int, colour: str = "", joint: str = "  ") -> list[Line]:
    """The cells behind the label, those that do not fit on the next line."""
    lines, line = [], label.ljust(_LABEL)
    for cell in cells:
        start = line if not line[_LABEL:] else line + joint
        if len(start) + len(cell) > width and line[_LABEL:]:
            lines.append(Line(line, colour))
            start = " " * _LABEL
        line = start + cell
    return [*lines, Line(line, colour)]


def _stalls(stalls: Sequence[Stall], width: int) -> list[Line]:
    """Who has waited; the command gets what room is left."""
    if not stalls:
        return [Line("no process has waited")]
    room = max(7, min(24, width - 44))
    head = f"{'PID':>8} {'COMMAND':<{room}} {'WAITS NOW':>9} {'FOR BYTES':>9} {'NAMES':>7} {'TIMES':>7}"
    return [
        Line(head, _MORE),
        *(
            Line(
                f"{stall.pid:>8} {visible(stall.command)[:room]:<{room}} {percent(stall.now):>9} "
                f"{duration(stall.seconds):>9} {duration(stall.names_seconds):>7} {stall.waits:>7,}",
                _YELLOW if stall.now >= 0.1 else "",
            )
            for stall in sorted(stalls, key=lambda stall: (-stall.now, -stall.seconds))
        ),
    ]


def _painted(line: Line, width: int, *, colour: bool) -> str:
    text = line.text[:width].rstrip()
    return f"{line.colour}{text}{_PLAIN}" if colour and line.colour and text else text


# -- numbers for people


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%" if share in (0.0, 1.0) else f"{100 * share:.1f}%"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 100:
        return span(seconds)
    if seconds >= 1 or not seconds:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def span(seconds: float) -> str:
    """The two largest of days, hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = (days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")
    words = [f"{value}{unit}" for value, unit in units]
    first = next((at for at, (value, _) in enumerate(units) if value), 3)
    return " ".join(words[first : first + 2])


def size(amount: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    power = min((int(amount).bit_length() - 1) // 10, 5) if amount >= 1024 else 0
    return f"{amount / 1024**power:.1f} {'KMGTP'[power - 1]}iB" if power else f"{amount:.0f} B"


def visible(text: str) -> str:
    """A name may have any byte in it, and a process may call itself anything."""
    clean = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in clean)
