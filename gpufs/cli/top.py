"""`gpufs top`: what a mount does now, who waits, and what limits."""

from __future__ import annotations

import argparse

from gpufs.cli.mounts import named_mount
from gpufs.errors import UsageError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "top",
        help="watch a mount: hits, latency, throughput, who waits, and what limits",
        description="On a terminal a view that renews itself (q quits); else a text for each interval.",
        epilog="examples:\n  gpufs top /data\n"
        "  gpufs top /data --once -d 10    what happens in 10 seconds, for a script",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument(
        "-d", dest="seconds", metavar="SECONDS", type=float, default=1.0, help="length of an interval (1)"
    )
    parser.add_argument("-n", dest="count", metavar="COUNT", type=int, help="end after so many intervals")
    parser.add_argument("--once", action="store_true", help="print one interval and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.seconds <= 3600:
        raise UsageError("-d takes 0.1 to 3600 seconds")
    if args.count is not None and args.count < 1:
        raise UsageError("-n takes a number from 1 on")
    mount = named_mount(args.mountpoint)
    from gpufs.observe import top  # other commands start without it
    from gpufs.observe.ask import figures_of

    show = top.print_each if args.once else top.watch
    show(lambda: figures_of(mount), args.seconds, 1 if args.once else args.count)
    return 0
