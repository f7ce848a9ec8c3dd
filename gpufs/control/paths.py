"""Where things are: the mounts of this host, and the control socket and log of each.

Nothing here touches a path inside a mount: the daemon behind it may hang or be dead.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

from gpufs.errors import MountFailed, NotFound, UsageError

FSTYPE = "fuse.gpufs"
_MOUNTINFO = "/proc/self/mountinfo"
_MAX_LINKS = 40  # as the kernel's own limit of symbolic links in one path


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo. `owner` is the uid that made a FUSE mount, else 0."""

    mountpoint: str
    fstype: str
    source: str
    owner: int
    device: str = ""


def parse_mountinfo(text: bytes) -> list[Mount]:
    """All mounts in the order of the kernel; of those stacked on one directory only the topmost."""
    mounts: dict[str, Mount] = {}
    for line in text.split(b"\n")[:-1]:  # not splitlines(): a name may hold a carriage return
        fields = line.split(b" ")
        # proc_pid_mountinfo(5): optional fields end with "-", then type, source, super options.
        dash = fields.index(b"-", 6)
        owner = re.search(rb"(?:^|,)user_id=([0-9]+)", fields[dash + 3])
        mountpoint = _unescape(fields[4])
        mounts.pop(mountpoint, None)
        mounts[mountpoint] = Mount(
            mountpoint=mountpoint,
            fstype=_unescape(fields[dash + 1]),
            source=_unescape(fields[dash + 2]),
            owner=int(owner[1]) if owner else 0,
            device=fields[2].decode(),
        )
    return list(mounts.values())


def _unescape(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field))


def all_mounts() -> list[Mount]:
    with open(_MOUNTINFO, "rb") as file:
        return parse_mountinfo(file.read())


def device_of(mountpoint: str) -> str | None:
    """The device number of the mount on `mountpoint` as the kernel writes it, "0:53"."""
    return next((m.device for m in all_mounts() if m.mountpoint == mountpoint), None)


def gpufs_mounts(mounts: Iterable[Mount]) -> list[Mount]:
    return [m for m in mounts if m.fstype == FSTYPE]


def locate(path: str, mounts: Iterable[Mount]) -> tuple[str, Mount | None]:
    """`path` made absolute with its symbolic links followed, and the gpufs mount that holds it.

    Links inside a gpufs mount are not followed, because reading them would ask its daemon.
    """
    by_point = {m.mountpoint: m for m in gpufs_mounts(mounts)}
    todo = [p for p in _absolute(path).split("/") if p not in ("", ".")][::-1]
    here, links = "/", 0
    while todo:
        part = todo.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        here = os.path.join(here, part)
        if _holding(here, by_point):
            continue
        try:
            target = os.readlink(here)
        except OSError:
            continue  # not a link, or not there: whoever uses the path will see
        links += 1
        if links > _MAX_LINKS:
            raise UsageError(f"too many levels of symbolic links: {path}")
        here = "/" if target.startswith("/") else os.path.dirname(here)
        todo += [p for p in target.split("/") if p not in ("", ".")][::-1]
    return here, _holding(here, by_point)


def _holding(path: str, by_point: Mapping[str, Mount]) -> Mount | None:
    """The innermost of these mounts that `path` is on."""
    while path not in by_point and path != "/":
        path = os.path.dirname(path)
    return by_point.get(path)


def _absolute(path: str) -> str:
    if path.startswith("/"):
        return path
    try:
        return os.path.join(os.readlink("/proc/self/cwd"), path)
    except OSError as error:
        raise UsageError(f"cannot tell the current directory for {path!r}: {error.strerror}") from error


def mount_of(path: str) -> tuple[Mount, str]:
    """The gpufs mount that holds `path`, and the path relative to it ("" for its root)."""
    full, mount = locate(path, all_mounts())
    if mount is None:
        raise NotFound(f"{path} is not inside a gpufs mount (gpufs status lists them)")
    return mount, os.path.relpath(full, mount.mountpoint) if full != mount.mountpoint else ""


def runtime_dir(owner: int) -> str:
    """The directory of the control sockets of the mounts that user `owner` made."""
    if owner == 0:
        return "/run/gpufs"
    own = os.environ.get("XDG_RUNTIME_DIR", "") if owner == os.geteuid() else ""
    base = own if os.path.isabs(own) else f"/run/user/{owner}"
    return os.path.join(base, "gpufs") if os.path.isdir(base) else f"/tmp/gpufs-{owner}"


def make_private(directory: str) -> None:
    """Make `directory` with mode 0700; MountFailed when it is there and is not ours alone."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise MountFailed(f"cannot make {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise MountFailed(f"{directory} must be a directory of uid {os.geteuid()} with mode 0700; remove it")


def make_public(directory: str) -> None:
    """Make `directory` with mode 0755; MountFailed when it is there and others may write to it."""
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        found = os.lstat(directory)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(directory, 0o755)  # whatever the umask was
            return
    except OSError as error:
        raise MountFailed(f"cannot make {directory}: {error.strerror}") from error
    raise MountFailed(f"{directory} must be a directory of uid {os.geteuid()}; remove it")


def hints_path(device: str, owner: int) -> str:
    """The socket for hints of the mount with this device number; gpufs.hints looks for it there.

    The number is the same wherever the tree is seen, in containers and bind mounts too.
    """
    if owner == 0:
        return f"/run/gpufs-hints/{device}.sock"
    return os.path.join(runtime_dir(owner), f"hints-{device}.sock")


def socket_path(mountpoint: str, owner: int) -> str:
    return os.path.join(runtime_dir(owner), f"{_digest(mountpoint)}.sock")


def log_path(mountpoint: str) -> str:
    """The log of the daemon that this user starts for `mountpoint`."""
    if os.geteuid() == 0:
        directory = "/var/log/gpufs"
    else:
        state = os.environ.get("XDG_STATE_HOME", "")
        base = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
        directory = os.path.join(base, "gpufs")
    label = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(mountpoint))[:64]
    return os.path.join(directory, f"{label}-{_digest(mountpoint)}.log")


def _digest(mountpoint: str) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(mountpoint))
