"""`gpufs install` and `uninstall`: the links in /sbin, so that mount(8) and fstab know gpufs."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig

from gpufs.errors import GpufsError, MountFailed

# mount(8) asks for the second name when it is given a mount point alone: the mount table has that type.
_HELPERS = ("/sbin/mount.gpufs", "/sbin/mount.fuse.gpufs")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    install = commands.add_parser(
        "install",
        help="make `mount -t gpufs` and fstab work (needs root)",
        description=f"Link {' and '.join(_HELPERS)} to this installation.",
        epilog="then:\n  mount -t gpufs s3://bucket/prefix /data -o cache_size=800GiB\n"
        "or in /etc/fstab:\n  s3://bucket/prefix  /data  gpufs  _netdev,nofail,cache_size=800GiB  0 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    install.set_defaults(run=lambda args: max(_install(helper, _script()) for helper in _HELPERS))
    uninstall = commands.add_parser("uninstall", help="undo `gpufs install`")
    uninstall.set_defaults(run=lambda args: max(map(_uninstall, _HELPERS)))


def _script() -> str:
    """The mount.gpufs script of this installation."""
    for directory in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        script = os.path.join(directory, "mount.gpufs")
        if os.access(script, os.X_OK):
            return script
    raise MountFailed("this installation has no mount.gpufs script; install gpufs with pip first")


def _is_ours(helper: str) -> bool:
    """A link to some installation's mount.gpufs, this one's or another's, alive or not."""
    return os.path.islink(helper) and os.path.basename(os.readlink(helper)) == "mount.gpufs"


def _install(helper: str, script: str) -> int:
    if os.path.lexists(helper) and not _is_ours(helper):
        raise MountFailed(f"{helper} is there already and is not a link to gpufs; remove it first")
    if os.path.lexists(helper) and os.readlink(helper) == script:
        print(f"{helper} links to {script} already")
        return 0
    temporary = f"{helper}.{os.getpid()}"
    try:
        os.symlink(script, temporary)
        os.replace(temporary, helper)
    except OSError as error:
        raise _refused(helper, error) from error
    print(f"linked {helper} to {script}")
    return 0


def _uninstall(helper: str) -> int:
    if not os.path.lexists(helper):
        print(f"{helper} is not there")
        return 0
    if not _is_ours(helper):
        raise MountFailed(f"{helper} is not a link to gpufs; it stays")
    try:
        os.unlink(helper)
    except OSError as error:
        raise _refused(helper, error) from error
    print(f"removed {helper}")
    return 0


def _refused(helper: str, error: OSError) -> GpufsError:
    return MountFailed(f"cannot change {helper}: {error.strerror}" + ("; be root" if os.geteuid() else ""))
