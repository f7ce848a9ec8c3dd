"""`gpufs status`: what the mounts of this host hold and how well their caches do."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from typing import Any

from gpufs.cli.mounts import named_mount
from gpufs.cli.output import counted, printable, size_text
from gpufs.control import client, paths
from gpufs.errors import GpufsError

_PATIENCE_S = 10.0
_HIDDEN_SHOWN = 5

Status = dict[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "status",
        help="show the mounts: files known, hits and misses, cache use",
        epilog="examples:\n  gpufs status            all gpufs mounts of this host\n"
        "  gpufs status /data --json | jq .remote_requests",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object; without MOUNTPOINT a list of them"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.mountpoint:
        status = client.call(named_mount(args.mountpoint), "status", timeout=_PATIENCE_S)
        print(json.dumps(status, indent=2) if args.json else render(status))
        return 0
    statuses, failed = [], False
    for mount in paths.gpufs_mounts(paths.all_mounts()):
        try:
            statuses.append(client.call(mount, "status", timeout=_PATIENCE_S))
        except GpufsError as error:
            failed = True
            statuses.append({"mountpoint": mount.mountpoint, "source": mount.source, "error": str(error)})
    if args.json:
        print(json.dumps(statuses, indent=2))
    else:
        print("\n\n".join(map(render, statuses)) or "no gpufs mounts")
    return 1 if failed else 0


def render(status: Status) -> str:
    """The human view of one status document."""
    head = f"{printable(status['mountpoint'])}  {printable(status['source'])}"
    if "error" in status:
        return f"{head}\n  {printable(status['error'])}"
    rows = [
        ("up", f"{_span(status['uptime_s'])}, {_fast_path(status)}"),
        (
            "tree",
            f"{counted(status['files'], 'file')} in "
            f"{counted(status['directories'], 'directory', 'directories')}, {size_text(status['bytes'])}",
        ),
        (
            "opens",
            f"{status['opens']:,}: {counted(status['hits'], 'hit')}, "
            f"{counted(status['misses'], 'miss', 'misses')}{_ratio(status)}{_ahead(status)}",
        ),
        (
            "remote",
            f"{counted(status['remote_requests'], 'request')}, {size_text(status['remote_bytes'])}; "
            f"{counted(status['remote_errors'], 'error')}, {counted(status['retries'], 'retry', 'retries')}",
        ),
        (
            "cache",
            f"{size_text(status['cache_bytes'])} of {size_text(status['cache_limit'])} "
            f"in {counted(status['cache_objects'], 'object')}; {counted(status['evictions'], 'eviction')}"
            f"{_passed_by(status)}{_compressed(status)}",
        ),
    ]
    if shared := _shared(status):
        rows.append(("shared", shared))
    if traffic := _traffic(status):
        rows.append(("traffic", traffic))
    rows += [("order", _order(order)) for order in status.get("orders", [])]
    rows += [("warming", _warming(warmup)) for warmup in status.get("warming", [])]
    if failing := status.get("source_error"):
        rows.append(("source", f"FAILING: {printable(failing)}"))
    if status["stale_served"]:
        listings = counted(status["stale_served"], "listing")
        rows.append(("stale", f"{listings} used past their time, the source being down"))
    if status["hidden_keys"]:
        keys = counted(status["hidden_keys"], "key")
        rows.append(("hidden", f"{keys} that no path can name{_examples(status)}"))
    rows += [("log", printable(log)) for log in _logs(status["pids"])]
    return "\n".join([head, *(f"  {name:<8}{text}" for name, text in rows)])


def _ahead(status: Status) -> str:
    ahead = status.get("prefetched", 0)
    if not ahead:
        return ""
    used, wasted = status.get("prefetched_used", 0), status.get("prefetched_wasted", 0)
    return f"; {ahead:,} fetched before they were asked for ({used:,} used, {wasted:,} evicted unused)"


def _passed_by(status: Status) -> str:
    passed_by = status.get("not_admitted", 0)
    return f", {passed_by:,} passed by in favour of what is kept" if passed_by else ""


def _compressed(status: Status) -> str:
    count = status.get("compressed", 0)
    return f"; {count:,} kept compressed, {size_text(status['compressed_saved'])} less" if count else ""


def _shared(status: Status) -> str:
    """The cache that several hosts share; empty when there is none."""
    shared = status.get("shared_cache")
    if not shared:
        return ""
    said = [
        f"{printable(shared['url'])}: {counted(status['shared_hits'], 'hit')}, "
        f"{counted(status['shared_misses'], 'miss', 'misses')}, {status['shared_writes']:,} written"
    ]
    for name, what in (("corrupt", "damaged"), ("dropped", "not written"), ("errors", "failed requests")):
        if count := status[f"shared_{name}"]:
            said.append(f"{count:,} {what}")
    states = {shared["small"], shared["large"]}
    if "left_alone" in states:
        said.append("LEFT ALONE: it does not answer, the source serves")
    elif "read_only" in states:
        said.append("ONLY READ: it takes nothing")
    return "; ".join(said)


def _traffic(status: Status) -> str:
    """What is on its way now, and what slows it; empty when there is nothing to say."""
    processes = status.get("on_their_way", {}).values()
    requests = sum(process["requests"] for process in processes)
    said = []
    if requests:
        size = size_text(sum(process["bytes"] for process in processes))
        said.append(f"{counted(requests, 'request')}, {size} on their way")
    if limit := status.get("bandwidth_limit"):
        said.append(f"limited to {size_text(limit)}/s")
    if throttled := status.get("throttled"):
        allowed = sum(process["requests_limit"] for process in processes)
        said.append(f"the source was too busy {throttled:,} times, gets {allowed} at once at most")
    return "; ".join(said)


def _order(order: dict[str, Any]) -> str:
    """An order in which files are read, and how far readers have come."""
    if order["source"] != "announced":
        what = "repeated from before" if order["source"] == "repeated" else "of names in a directory"
        return f"{what}: up to {counted(order['window'], 'file')} are fetched ahead"
    by = order["announced_by"]
    unknown = f", {counted(order['unknown'], 'name')} not there" if order["unknown"] else ""
    name = f" ({printable(by['name'])})" if by["name"] else ""
    return (
        f"announced by process {by['pid']} of uid {by['uid']}{name}: "
        f"{order['position']:,} of {counted(order['files'], 'file')} read{unknown}"
    )


def _warming(warmup: dict[str, Any]) -> str:
    """A warm-up that is under way."""
    named = [printable(path) or "everything" for path in warmup["paths"]]
    more = f" and {warmup['more_paths']:,} more" if warmup["more_paths"] else ""
    return (
        f"{', '.join(named)}{more}: {warmup['cached']:,} of {counted(warmup['files'], 'file')}, "
        f"{size_text(warmup['cached_bytes'])} of {size_text(warmup['bytes'])} cached"
    )


def _fast_path(status: Status) -> str:
    if not status["fast_path"]:
        return "fast path off"
    return (
        "fast path on"
        if status.get("supervisor", 1)
        else "fast path on, no supervisor: a crash ends the mount"
    )


def _examples(status: Status) -> str:
    shown = [repr(printable(h["key"])) for h in status.get("hidden", [])[:_HIDDEN_SHOWN]]
    more = ", ..." if status["hidden_keys"] > len(shown) else ""
    return f": {', '.join(shown)}{more}" if shown else ""


def _logs(pids: list[int]) -> list[str]:
    """The files that the daemon's processes write their messages to, as far as we may know."""
    found: dict[str, None] = {}
    for pid in pids:
        with suppress(OSError):
            found[os.readlink(f"/proc/{pid}/fd/2")] = None
    return [log for log in found if log.startswith("/") and not log.startswith("/dev/")]


def _ratio(status: Status) -> str:
    return f" ({100 * status['hits'] / status['opens']:.1f}% hits)" if status["opens"] else ""


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    words = [f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(words) or f"{rest} s"
