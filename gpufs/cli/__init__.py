"""The command line: reads the arguments, runs one command, turns errors into one line and a status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpufs import __version__
from gpufs.cli import dashboard, doctor, install, metrics, mount, on_path, restart, status, top, umount, warm
from gpufs.cli.output import say
from gpufs.errors import GpufsError, UsageError

_EPILOG = """\
a first mount:
  mkdir -p /data
  gpufs mount s3://my-bucket/train /data
  gpufs status /data
  gpufs umount /data

`gpufs COMMAND --help` explains a command, with examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 it failed (one line on stderr says why), 2 wrong usage."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except UsageError as error:
        say(str(error))
        return 2
    except GpufsError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # else Python complains about stdout once more at its exit
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpufs",
        description="Show a remote dataset (S3, or any directory) as a local read-only tree, cached on NVMe.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpufs {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (mount, umount, restart, status, top, dashboard, metrics, warm, on_path, doctor, install):
        module.add_parser(commands)
    return parser
