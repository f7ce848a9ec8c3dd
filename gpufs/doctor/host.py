"""This host: what FUSE needs of it, and what makes it fast."""

from __future__ import annotations

import os
import re
import resource
import shutil
from pathlib import Path

from gpufs.mounting import users_may_share

from .finding import Finding, fail, ok, warn

DEVICE = "/dev/fuse"
PASSTHROUGH_SINCE = (6, 9)  # the kernel that has FUSE passthrough, and can queue requests again
OLDEST = (4, 20)  # the kernel that first took READs of more than 128 KiB
ENOUGH_FILES = 65_536  # descriptors: one for each open file of a reader, a connection, an object on its way
ENOUGH_PAGES = 256  # of 4 KiB: READs of 1 MiB
LEAST_MEMORY = 1 << 30  # bytes: four processes of 40 MiB, 256 MiB on their way, and the index


def kernel(release: str) -> Finding:
    """`release` as uname(2) gives it."""
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < OLDEST:
        return fail("kernel", f"{release} is too old", "use Linux 4.20 or newer, best 6.9 or newer")
    if version < PASSTHROUGH_SINCE:
        return warn(
            "kernel",
            f"{release} has no FUSE passthrough: cached files are read through gpufs, at half the speed",
            "use Linux 6.9 or newer",
        )
    return ok("kernel", f"{release}, new enough for passthrough")


def device(path: str = DEVICE) -> Finding:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return fail(
            "device",
            f"{path} is missing",
            "modprobe fuse; in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN",
        )
    except OSError as error:
        return fail("device", f"{path}: {error.strerror}", f"mount as root, or let users: chmod 0666 {path}")
    return ok("device", f"{path} can be opened")


def fusermount(uid: int, path: str | None = None) -> Finding:
    """`path` as the shell would find it."""
    where = shutil.which("fusermount3", path=path)
    if where is not None:
        return ok("fusermount3", where)
    remedy = "install the package fuse3"
    if uid == 0:
        return warn("fusermount3", "missing; only users other than root need it", remedy)
    return fail("fusermount3", "missing: only root can mount without it", remedy)


def sharing(uid: int, allow_other: bool, configuration: str = "/etc/fuse.conf") -> Finding:
    """Whether other users can be given access."""
    if uid == 0:
        return ok("allow_other", "root may share its mounts with others")
    if users_may_share(configuration):
        return ok("allow_other", f"{configuration} has user_allow_other")
    remedy = f"root writes a line user_allow_other into {configuration}"
    if allow_other:
        return fail("allow_other", f"{configuration} does not let users share their mounts", remedy)
    return ok("allow_other", f"off, as {configuration} has no user_allow_other")


def read_size(limit: Path = Path("/proc/sys/fs/fuse/max_pages_limit")) -> Finding:
    """The kernel's largest READ; the limit can be set since Linux 6.13."""
    try:
        pages = int(limit.read_text())
    except (OSError, ValueError):
        return ok("max_pages", "not limited by this kernel")
    if pages < ENOUGH_PAGES:
        return warn(
            "max_pages",
            f"{limit} is {pages}: large files are read in pieces of {pages * 4} KiB",
            f"sysctl -w fs.fuse.max_pages_limit={ENOUGH_PAGES} (and a line in /etc/sysctl.d)",
        )
    return ok("max_pages", f"{pages}: READs of up to 1 MiB")


def open_files(hard: int | None = None) -> Finding:
    """The limit of descriptors that the daemon can raise itself to."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    if most != resource.RLIM_INFINITY and most < ENOUGH_FILES:
        return warn(
            "open files",
            f"at most {most:,} descriptors in a process: each file that is read at once takes one",
            f"ulimit -Hn {ENOUGH_FILES}, or LimitNOFILE= of the service",
        )
    return ok("open files", "no limit" if most == resource.RLIM_INFINITY else f"up to {most:,} descriptors")


def memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        return warn("memory", f"{meminfo} does not tell what is available", "mount /proc")
    available = int(found[1]) << 10
    text = f"{available / 2**30:.1f} GiB available"
    if available < LEAST_MEMORY:
        return warn("memory", text, "leave gpufs 1 GiB, and 150 MB more for each million files")
    return ok("memory", text)
