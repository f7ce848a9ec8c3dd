"""`gpufs dashboard`: a page with live charts of a mount, for a browser on this host."""

from __future__ import annotations

import argparse

from gpufs.cli.mounts import named_mount
from gpufs.errors import UsageError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="serve a page with live charts of a mount, on loopback",
        description="Prints the address of the page, and serves it until interrupted. From another host: "
        "ssh -L 8080:127.0.0.1:PORT HOST, and the same address with port 8080.",
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument(
        "--port", metavar="N", type=int, default=0, help="port to listen on (any that is free)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= 65535:
        raise UsageError("--port takes a number up to 65535")
    mount = named_mount(args.mountpoint)
    from gpufs.observe import dashboard  # other commands start without it
    from gpufs.observe.ask import figures_of

    dashboard.serve(lambda: figures_of(mount), args.port)
    return 0
