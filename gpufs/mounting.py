"""mount(2) and umount2(2) of a FUSE connection, by ourselves as root and through fusermount3 otherwise."""

from __future__ import annotations

import array
import errno
import os
import socket
import subprocess
from urllib.parse import quote

from gpufs.errors import MountFailed

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4  # <sys/mount.h>
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
FSTYPE = "fuse.gpufs"


def shown_source(source: str) -> str:
    """The source as the mount table shows it: ASCII, and no comma, which ends a mount option."""
    return quote(os.fsencode(source), safe="/:@!$&'()*+;=~?#[]")


def open_device() -> int:
    try:
        return os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountFailed(f"cannot open /dev/fuse: {error.strerror}; try: modprobe fuse") from error


def mount(device_fd: int, source: str, mountpoint: str, *, allow_other: bool, max_read: int) -> None:
    """Mount the connection of `device_fd` read-only, as root. Raises MountFailed."""
    options = (
        f"fd={device_fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},"
        f"default_permissions,max_read={max_read}" + (",allow_other" if allow_other else "")
    )
    import ctypes  # costs every command a few milliseconds, and only root needs it

    libc = ctypes.CDLL(None, use_errno=True)
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    arguments = (
        shown_source(source).encode(),
        os.fsencode(mountpoint),
        FSTYPE.encode(),
        flags,
        options.encode(),
    )
    if libc.mount(*arguments):
        number = ctypes.get_errno()
        raise MountFailed(
            f"cannot mount on {mountpoint}: {os.strerror(number)}{_hint(number == errno.EPERM)}"
        )


def mount_as_user(source: str, mountpoint: str, *, allow_other: bool, max_read: int) -> int:
    """Have fusermount3 mount; the descriptor of the connection. Raises MountFailed."""
    options = (
        f"ro,nosuid,nodev,fsname={shown_source(source)},subtype=gpufs,default_permissions,max_read={max_read}"
        + (",allow_other" if allow_other else "")
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            done = subprocess.run(
                ["fusermount3", "-o", options, "--", mountpoint],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno()), "LC_ALL": "C"},
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            raise MountFailed("fusermount3 is missing; install the package fuse3") from None
        if done.returncode:
            reason = done.stderr.strip()
            refused = os.strerror(errno.EPERM) in reason
            raise MountFailed(f"cannot mount on {mountpoint}: {reason}{_hint(refused)}")
        fds = array.array("i")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(fds.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: fds.itemsize])
    if not fds:
        raise MountFailed(f"cannot mount on {mountpoint}: fusermount3 gave no descriptor")
    return fds[0]


def _hint(refused: bool) -> str:
    """What to do when the system does not let anybody in this place mount."""
    if not refused:
        return ""
    return "; a container needs the right to mount (docker run --device /dev/fuse --cap-add SYS_ADMIN)"


def unmount(mountpoint: str, *, lazy: bool) -> str | None:
    """Unmount; None when done, else why not (os.strerror(EBUSY) when it is in use)."""
    if os.geteuid() == 0:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mountpoint), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)) == 0:
            return None
        return os.strerror(ctypes.get_errno())
    try:
        done = subprocess.run(
            ["fusermount3", "-uz" if lazy else "-u", "--", mountpoint],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return "fusermount3 is missing; install the package fuse3"
    if done.returncode == 0:
        return None
    busy = os.strerror(errno.EBUSY)
    return busy if "busy" in done.stderr else done.stderr.strip() or f"fusermount3 exit {done.returncode}"


def users_may_share(configuration: str = "/etc/fuse.conf") -> bool:
    """Whether fusermount3 lets users other than root mount with allow_other."""
    try:
        with open(configuration, errors="replace") as file:
            return any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        return False
