"""The settings that suit what was found: a line for fstab, and a file for systemd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpufs.control.paths import Mount
from gpufs.options import Options, Settings

from .disk import LOCAL, existing

_PLACE = "/data"


@dataclass(frozen=True, slots=True)
class Disk:
    """A local file system: where, and how many bytes of it are free."""

    mountpoint: str
    total: int
    free: int


def local_disks(mounts: list[Mount]) -> list[Disk]:
    """Those fit for a cache, the one with most room first; one for each device."""
    found: dict[str, Disk] = {}
    for mount in mounts:
        if mount.fstype in LOCAL and mount.device not in found and os.access(mount.mountpoint, os.W_OK):
            disk = os.statvfs(mount.mountpoint)
            found[mount.device] = Disk(
                mount.mountpoint, disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
            )
    return sorted(found.values(), key=lambda disk: disk.free, reverse=True)


def choose(settings: Settings, options: Options, fit: bool, disks: list[Disk]) -> Settings:
    """What was given, and what this host asks for besides. `fit`: the cache's disk is a local one."""
    chosen = dict(settings)
    if not fit and disks:
        chosen["cache_dir"] = str(Path(disks[0].mountpoint, "gpufs-cache"))
        total, free = disks[0].total, disks[0].free
    else:
        chosen["cache_dir"] = str(options.cache_dir)
        disk = os.statvfs(existing(options.cache_dir))
        total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    if "cache_size" not in settings and free < total * 0.85:  # else the default of 80% can be had
        room = max(free - options.min_free.in_bytes(total), 0)
        chosen["cache_size"] = f"{room >> 30}GiB" if room >> 30 else f"{room >> 20}MiB"
    return chosen


def fstab_line(source: str, chosen: Settings) -> str:
    """As fstab(5) wants it: spaces as \\040, and a comma inside a value as mount.gpufs reads it."""
    options = ",".join(["_netdev", "nofail", *(_option(key, value) for key, value in chosen.items())])
    return f"{_escaped(source)}  {_PLACE}  gpufs  {options}  0 0"


def toml_text(source: str, chosen: Settings) -> str:
    lines = [f"source = {_quoted(source)}", f"mountpoint = {_quoted(_PLACE)}"]
    lines += [
        f"{key} = {'true' if value is None else value if value in ('true', 'false') else _quoted(value)}"
        for key, value in chosen.items()
    ]
    return "\n".join(lines)


def _option(key: str, value: str | None) -> str:
    if value is None:
        return key
    return f"{key}={_escaped(value.replace(chr(92), chr(92) * 2).replace(',', chr(92) + ','))}"


def _escaped(text: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
