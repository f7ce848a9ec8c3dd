"""`gpufs warm`: have files in the cache before anybody reads them, and watch how it goes."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gpufs.cli.output import counted, printable, say, size_text
from gpufs.cli.progress import Progress
from gpufs.control import client, paths
from gpufs.errors import GpufsError, NotFound, UsageError

JOBS = 32
_POLL_S = 0.2  # between two looks at the progress
_TOLD_S = 1.0  # between two JSON lines
_PATIENCE_S = 90.0  # a directory may have to be listed, and the source may be slow
_PIECE = 40_000  # bytes of names in one request
_EPILOG = """\
examples:
  gpufs warm /data/train                      everything below a directory
  gpufs warm /data --dry-run                  only say how much there is, and whether it fits
  gpufs warm /data --order-file epoch1.txt    in the order in which a job is going to read
  gpufs warm /data --json | jq .fetched_bytes

An order file has one path in each line, as you would write it after `gpufs warm`. These files come
first, in their order (small files before those of more than 4 MiB); then all others below PATH.

What is cached already is not fetched again, so an interrupted run is continued by a second one.
Nothing is evicted to make room: what does not fit into cache_size and min_free is not fetched.

exit status: 0 all of it is cached now (with --dry-run: it would fit); 1 something failed or did not
fit; 130 interrupted.
"""

Report = dict[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    does = "fetch everything below some paths into the local cache, before it is read"
    parser = commands.add_parser(
        "warm",
        help=does,
        description=does,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a path inside a mounted tree")
    parser.add_argument("--order-file", metavar="FILE", help="names what to fetch first, a path in each line")
    parser.add_argument("--jobs", metavar="N", type=int, default=JOBS, help=f"fetched at once [{JOBS}]")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be fetched")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object in each line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    mount, named = _inner_paths(args.paths)
    first = _ordered(args.order_file, mount) if args.order_file else []
    job = call(mount, "warm_start", jobs=args.jobs, dry_run=args.dry_run)["job"]
    try:
        _name(mount, job, named, "")
        _name(mount, job, first, args.order_file)
        call(mount, "warm_go", job=job)
        report = _watch(mount, job, as_json=args.json)
        _tell_end(report, dry_run=args.dry_run, as_json=args.json)
    except KeyboardInterrupt:
        say("interrupted; what was fetched is kept, and the same command goes on from there")
        raise
    finally:
        with suppress(GpufsError):
            call(mount, "warm_stop", job=job)
    return 0 if report["complete"] or (args.dry_run and _good_plan(report)) else 1


def call(mount: paths.Mount, op: str, **arguments: Any) -> Report:
    return client.call(mount, op, timeout=_PATIENCE_S, **arguments)


def _good_plan(report: Report) -> bool:
    return bool(report["fits"]) and report["error"] is None


# -- what to warm


def _inner_paths(named: list[str]) -> tuple[paths.Mount, list[tuple[str, str]]]:
    """The mount of all of them; each as it was written, and inside the mount."""
    mount, found = None, []
    for path in named:
        on, inner = paths.mount_of(path)
        if mount is not None and on != mount:
            raise UsageError(
                f"{printable(path)} is on {printable(on.mountpoint)}, other paths are on "
                f"{printable(mount.mountpoint)}: warm one mount at a time"
            )
        mount = on
        found.append((printable(path), inner))
    assert mount is not None
    return mount, found


def _ordered(order_file: str, mount: paths.Mount) -> list[tuple[str, str]]:
    """The paths of the file inside the mount, each with its line for people."""
    try:
        with open(order_file, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the order file {order_file}: {error.strerror}") from error
    mounts = paths.all_mounts()
    directories: dict[str, str | None] = {}  # by name: where in the mount, None for elsewhere
    found = []
    for number, line in enumerate(lines, 1):
        if not (path := os.fsdecode(line)):
            continue
        above, name = os.path.split(path)
        if above not in directories:
            full, on = paths.locate(above or ".", mounts)
            directories[above] = os.path.relpath(full, mount.mountpoint) if on == mount else None
        inner = directories[above]
        where = f"line {number}: {printable(path)}"
        if inner is None or name in ("", ".", ".."):
            raise NotFound(f"{order_file}, {where} is no file on {printable(mount.mountpoint)}")
        found.append((where, os.path.normpath(os.path.join(inner, name))))
    return found


def _name(mount: paths.Mount, job: int, named: list[tuple[str, str]], order_file: str) -> None:
    """Tell the daemon what to warm. NotFound names the first thing that is not there."""
    missing: list[str] = []
    for piece in _pieces(named):
        answer = call(mount, "warm_add", job=job, paths=[inner for _, inner in piece], files=bool(order_file))
        missing += [piece[position][0] for position in answer["missing"]]
    if missing:
        what = f"{order_file}: no such file in the tree" if order_file else "no such file or directory"
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise NotFound(f"{what}: {missing[0]}{more}")


def _pieces(named: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    piece: list[tuple[str, str]] = []
    size = 0
    for item in named:
        length = len(json.dumps(item[1]))
        if piece and size + length > _PIECE:
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += length + 2
    if piece:
        yield piece


# -- how it goes


def _watch(mount: paths.Mount, job: int, *, as_json: bool) -> Report:
    """Show the progress until it is done."""
    told_plan = False
    told = time.monotonic()
    with Progress(quiet=as_json) as shown:
        while True:
            report = call(mount, "warm_progress", job=job, wait=_POLL_S)
            if not told_plan and report["state"] not in ("naming", "counting"):
                told_plan = True
                shown.clear()
                _tell_plan(report, as_json=as_json)
            if report["state"] == "done":
                return report
            shown.update(report, time.monotonic())
            if as_json and told_plan and time.monotonic() - told >= _TOLD_S:
                told = time.monotonic()
                _tell_json("progress", report)


def _tell_json(event: str, report: Report) -> None:
    print(json.dumps({"event": event} | report), flush=True)


def _tell_plan(report: Report, *, as_json: bool) -> None:
    if as_json:
        _tell_json("plan", report)
        return
    left = report["files"] - report["here"]
    print(f"{counted(report['files'], 'file')}, {size_text(report['bytes'])}", end="")
    if not left:
        print(": all cached already", flush=True)
        return
    print(f"; cached already: {counted(report['here'], 'file')}, {size_text(report['here_bytes'])}")
    missing = f"{counted(left, 'file')}, {size_text(report['bytes'] - report['here_bytes'])}"
    room = f"the cache has room for {size_text(report['room'])}"
    if report["fits"]:
        print(f"to fetch: {missing}; it fits: {room}", flush=True)
    else:
        print(f"to fetch: {missing}; it DOES NOT FIT: {room} (see cache_size and min_free)", flush=True)


def _tell_end(report: Report, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        _tell_json("end", report)
    elif not dry_run and report["here"] < report["files"]:
        fetched = f"fetched {counted(report['fetched'], 'file')}, {size_text(report['fetched_bytes'])}"
        if report["complete"]:
            print(f"{fetched}; everything is cached")
        else:
            missing = counted(report["files"] - report["cached"], "file")
            print(f"{fetched}; NOT cached: {missing}{_why(report)}")
    if report["error"] is not None:
        what = "given up, the source goes on failing" if report["given_up"] else "the first failure"
        say(f"{what}: {printable(report['error'])}")


def _why(report: Report) -> str:
    left_out = report["files"] - report["cached"] - report["failed"]
    reasons = [f"{report['failed']:,} failed"] if report["failed"] else []
    if left_out > 0 and not report["given_up"]:
        reasons.append(f"no room for {left_out:,}")
    return f" ({', '.join(reasons)})" if reasons else ""
