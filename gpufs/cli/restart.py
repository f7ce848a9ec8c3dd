"""`gpufs restart`: the processes behind a mount started anew, with the code that is installed now."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpufs.cli.mounts import add_mountpoint, chosen_mount
from gpufs.cli.output import printable
from gpufs.control import client, paths
from gpufs.errors import AccessDenied, DeadlineExceeded, MountFailed
from gpufs.handoff.report import NOT_RESTARTED

_PATIENCE_S = 60.0
_STATUS_PATIENCE_S = 10.0
_POLL_S = 0.02


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "restart",
        help="start the daemon of a mounted tree anew, behind its readers' backs",
        description="Start the daemon of a mounted tree anew, after an upgrade of gpufs for example. "
        "Whoever reads the tree waits for a moment and notices nothing else. Options stay as they are.",
        epilog="example:\n  pip install --upgrade gpufs && gpufs restart /data",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_mountpoint(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    mount = chosen_mount(args)
    before = _status_now(mount)
    where = mount.mountpoint
    if not before["fast_path"]:
        raise MountFailed(
            f"{where} has fast_path=off, which cannot be restarted in place; unmount and mount it"
        )
    supervisor = before.get("supervisor", before["pids"][-1])  # an older daemon does not tell
    if not supervisor:
        raise MountFailed(f"the supervisor of {where} has died; unmount and mount it")
    with _refusals_of(supervisor) as refusal:
        try:
            os.kill(supervisor, signal.SIGHUP)
        except PermissionError as error:
            raise AccessDenied(
                f"{where} was mounted by uid {mount.owner}; restart it as that user"
            ) from error
        after, pause = _await_new(mount, before["pids"], refusal)
    print(
        f"{printable(where)} runs gpufs {after['version']} (before: {before.get('version', 'unknown')}); "
        f"it paused for {pause:.1f} s"
    )
    return 0


def _status_now(mount: paths.Mount) -> dict[str, Any]:
    """The daemon's status; of one that hangs, which is what a restart may be for, what /proc tells."""
    try:
        return client.call(mount, "status", timeout=_STATUS_PATIENCE_S)
    except DeadlineExceeded:
        filesystem = client.daemon_pid(mount)
        with open(f"/proc/{filesystem}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{parent}/cmdline", "rb") as command:
            supervised = b"gpufs.supervisor" in command.read()
        supervisor = parent if supervised else 0
        unknown = [0, 0]  # the fast path and the fetch process
        return {"fast_path": supervised, "supervisor": supervisor, "pids": [filesystem, *unknown, supervisor]}


@contextmanager
def _refusals_of(supervisor: int) -> Iterator[Callable[[], str]]:
    """What the supervisor logs from now on about why it is not restarted, "" while there is nothing.

    A log that is no file (a terminal, the journal) tells nothing here.
    """
    try:
        fd = os.open(f"/proc/{supervisor}/fd/2", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        yield lambda: ""
        return
    with os.fdopen(fd, "rb") as log:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            yield lambda: ""
            return
        start = log.seek(0, os.SEEK_END)

        def refusal() -> str:
            log.seek(start)
            from gpufs.logs import message_of  # most commands start without logging

            whole_lines = log.read().decode(errors="replace").split("\n")[:-1]
            return next((message_of(line) for line in whole_lines if NOT_RESTARTED in line), "")

        yield refusal


def _await_new(
    mount: paths.Mount, old: list[int], refusal: Callable[[], str]
) -> tuple[dict[str, Any], float]:
    """The first status of a wholly new life, and the seconds in which nobody answered."""
    last = time.monotonic()
    end = last + _PATIENCE_S
    while time.monotonic() < end:
        with suppress(client.NobodyListens, DeadlineExceeded):
            status = client.call(mount, "status", timeout=_STATUS_PATIENCE_S)
            now = time.monotonic()
            if not set(status["pids"][:-1]) & set(old) and len(status["pids"]) == len(old):
                return status, now - last
            if status["pids"][0] == old[0]:
                last = now
        if why := refusal():
            raise MountFailed(f"{mount.mountpoint} runs on as it was: {why}")
        time.sleep(_POLL_S)
    raise MountFailed(
        f"{mount.mountpoint} was not restarted within {_PATIENCE_S:.0f} s; its log says why "
        "(gpufs status names it)"
    )
