"""`gpufs umount`: detach a mount and wait until its daemon has put everything away."""

from __future__ import annotations

import argparse
import os
import select
from contextlib import suppress

from gpufs.cli import mounts
from gpufs.cli.output import say
from gpufs.control import client, paths
from gpufs.control.client import NobodyListens
from gpufs.errors import AccessDenied, DeadlineExceeded, MountFailed

_MOMENT_S = 2.0  # a daemon whose tree is gone has closed its control socket by then
_PATIENCE_S = 60.0  # for the daemon to end; what it has cached is safe on disk after that


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "umount",
        help="unmount a gpufs tree",
        epilog="examples:\n  gpufs umount /data\n  gpufs umount --lazy /data    "
        "(detach now, though files are open; the daemon ends with its last reader)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mounts.add_mountpoint(parser)
    parser.add_argument("--lazy", action="store_true", help="detach now, even while it is in use")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    mount = mounts.chosen_mount(args)
    daemon = _daemon_handle(mount)
    if daemon is None:
        mounts.detach(mount, lazy=args.lazy or mounts.is_dead(mount))
        return 0
    try:
        mounts.detach(mount, lazy=args.lazy)
        # A lazily detached daemon stays for as long as its readers do.
        if args.lazy or _ends(daemon, _MOMENT_S):
            return 0
        if _listens(mount):
            say(
                f"{mount.mountpoint} is unmounted; its daemon goes on, because the tree is mounted "
                "elsewhere too (a bind mount, a container, an overlay)"
            )
        elif not _ends(daemon, _PATIENCE_S):
            raise MountFailed(
                f"{mount.mountpoint} is unmounted, but its daemon is still busy putting things away"
            )
    finally:
        os.close(daemon)
    return 0


def _ends(daemon: int, within: float) -> bool:
    return bool(select.select([daemon], [], [], within)[0])


def _listens(mount: paths.Mount) -> bool:
    try:
        client.daemon_pid(mount)
    except (NobodyListens, AccessDenied, DeadlineExceeded):
        return False
    return True


def _daemon_handle(mount: paths.Mount) -> int | None:
    """A pidfd of the daemon, to learn of its end; None when there is no (reachable) daemon.

    Of its processes the supervisor is the last to end.
    """
    try:
        pid = client.daemon_pid(mount)
        with suppress(NobodyListens, AccessDenied, DeadlineExceeded):
            pid = client.call(mount, "status", timeout=_MOMENT_S).get("supervisor") or pid
        return os.pidfd_open(pid)
    except (NobodyListens, AccessDenied, DeadlineExceeded, ProcessLookupError):
        return None
