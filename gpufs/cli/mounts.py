"""What the commands do to a mount from outside: find it, tell if it is alive and who uses it, detach it."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from contextlib import suppress

from gpufs.control import client, paths
from gpufs.control.paths import Mount
from gpufs.errors import AccessDenied, DeadlineExceeded, MountFailed, UsageError
from gpufs.mounting import unmount
from gpufs.options import read_config

# statfs goes to the daemon; in a child of its own, because it may never come back.
_PROBE = "import os, sys\ntry: os.statvfs(sys.argv[1])\nexcept OSError as e: sys.exit(e.errno)"
_PROBE_PATIENCE_S = 5.0
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)


def add_mountpoint(parser: argparse.ArgumentParser) -> None:
    """MOUNTPOINT, or the file that names it."""
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?")
    parser.add_argument("--config", metavar="FILE", help="the TOML file it was mounted with, instead")


def chosen_mount(args: argparse.Namespace) -> Mount:
    """What the arguments of add_mountpoint() name; MountFailed when it is no gpufs mount."""
    mountpoint = args.mountpoint
    if mountpoint is None and args.config is not None:
        mountpoint = read_config(args.config).get("mountpoint")
    if mountpoint is None:
        raise UsageError("name the MOUNTPOINT, or the --config file that has it")
    return named_mount(mountpoint)


def named_mount(mountpoint: str) -> Mount:
    """The gpufs mount on exactly this directory; MountFailed when there is none."""
    where, mount = paths.locate(mountpoint, paths.all_mounts())
    if mount is None:
        raise MountFailed(f"{mountpoint} is not a gpufs mount (gpufs status lists them)")
    if where != mount.mountpoint:
        raise MountFailed(f"{mountpoint} is inside the gpufs mount on {mount.mountpoint}; name that")
    return mount


def is_dead(mount: Mount) -> bool:
    """True when the daemon of this gpufs mount is gone for good. A hung one is not dead."""
    try:
        client.daemon_pid(mount)
        return False
    except client.NobodyListens:
        pass
    except (AccessDenied, DeadlineExceeded):
        return False
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROBE, mount.mountpoint], stderr=subprocess.DEVNULL
    )
    try:
        return child.wait(_PROBE_PATIENCE_S) in _DEAD
    except subprocess.TimeoutExpired:
        child.kill()
        # Not for ever: once its request is with a hung daemon, not even a kill ends the wait.
        with suppress(subprocess.TimeoutExpired):
            child.wait(1)
        return False


def detach(mount: Mount, *, lazy: bool) -> None:
    """Unmount; MountFailed names the processes that keep it busy."""
    failure = unmount(mount.mountpoint, lazy=lazy)
    if failure is None:
        return
    where = mount.mountpoint
    if failure != os.strerror(errno.EBUSY):
        raise MountFailed(f"cannot unmount {where}: {failure}")
    users = holders(where)
    shown = ", ".join(users[:8]) + (f" and {len(users) - 8} more" if len(users) > 8 else "")
    raise MountFailed(
        f"{where} is busy{': in use by ' + shown if users else ''}; end that and try again, "
        f"or detach it now and let it go when the last user ends: gpufs umount --lazy {where}"
    )


def holders(mountpoint: str) -> list[str]:
    """`name (pid N)` of each process with a file, directory or mapping below `mountpoint`.

    Only links and tables of /proc are read; nothing below the mount is touched. Other users'
    processes are seen by root alone.
    """
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if any(_is_below(path, mountpoint) for path in _open_paths(pid)):
            found.append(f"{_name_of(pid)} (pid {pid})")
    return found


def _is_below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _open_paths(pid: int) -> list[str]:
    """Everything the process has open; short when it ends meanwhile or is not ours to look at."""
    found = []
    links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root", f"/proc/{pid}/exe"]
    with suppress(OSError):
        links += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    for link in links:
        with suppress(OSError):
            found.append(os.readlink(link))
    with suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
        found += [words[5].rstrip("\n") for line in maps if len(words := line.split(None, 5)) > 5]
    return found


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"
