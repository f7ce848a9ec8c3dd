"""`gpufs refresh` and `gpufs evict`: the commands that act on one path of a mounted tree."""

from __future__ import annotations

import argparse
from typing import Any

from gpufs.cli.output import counted, printable, size_text
from gpufs.control import client, paths

_PATIENCE_S = 3600.0  # a large tree takes its time; Ctrl-C gives up earlier


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add(
        commands,
        "refresh",
        "look at the source again for a file or directory, without waiting for metadata_ttl",
        "examples:\n  gpufs refresh /data/labels.csv\n  gpufs refresh /data/train",
    )
    _add(
        commands,
        "evict",
        "drop the cached bytes of a file, or of all files below a directory",
        "examples:\n  gpufs evict /data/old-run\n  gpufs evict /data    (everything)\n\n"
        "Who has a file open keeps reading it; the next open fetches it again.",
    )


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], op: str, does: str, more: str
) -> None:
    parser = commands.add_parser(
        op, help=does, description=does, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", help="a path inside a mounted tree")
    parser.set_defaults(run=run, op=op)


def run(args: argparse.Namespace) -> int:
    mount, inner = paths.mount_of(args.path)
    result = client.call(mount, args.op, timeout=_PATIENCE_S, path=inner)
    print(f"{args.op} {printable(args.path)}: {_told(result)}")
    return 0


def _told(result: dict[str, Any]) -> str:
    """What the daemon did: listed `directories` and found `changes`, or dropped `files` and their `bytes`."""
    if "directories" in result:
        listed = counted(result["directories"], "directory", "directories")
        return f"listed {listed}, {counted(result['changes'], 'change')}"
    return f"dropped {counted(result['files'], 'file')}, {size_text(result['bytes'])}"
