"""`gpufs metrics`: the figures of mounts for Prometheus, once or for whoever scrapes."""

from __future__ import annotations

import argparse
import sys

from gpufs.cli.mounts import named_mount
from gpufs.control import paths
from gpufs.control.paths import Mount


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "metrics",
        help="the figures of mounts for Prometheus: once, into a file, or by HTTP",
        description="Without MOUNTPOINT, of all mounts of this host. docs/metrics.md explains each name.",
        epilog="examples:\n  gpufs metrics /data\n"
        "  gpufs metrics --output /var/lib/prometheus/node-exporter/gpufs.prom   for its textfile collector\n"
        "  gpufs metrics --listen 127.0.0.1:9400                                 to be scraped",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?")
    parser.add_argument(
        "--openmetrics", action="store_true", help="as OpenMetrics, not in the older text format"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", metavar="FILE", help="replace FILE in one step")
    where.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="serve /metrics until interrupted; anybody who reaches the address may read",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import logging

    from gpufs.observe import exporter  # other commands start without it
    from gpufs.observe.web import parse_address

    logging.basicConfig(format="gpufs: %(message)s")  # of a mount that gives no answer

    def mounts() -> list[Mount]:
        if args.mountpoint:
            return [named_mount(args.mountpoint)]
        return paths.gpufs_mounts(paths.all_mounts())

    if args.listen is not None:
        exporter.serve(mounts, *parse_address(args.listen))
        return 0
    text, complete = exporter.text_of(mounts(), openmetrics=args.openmetrics)
    if args.output is None:
        sys.stdout.write(text)
    else:
        exporter.replace(args.output, text)
    return 0 if complete else 1
