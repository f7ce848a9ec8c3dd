"""Whether the kernel reads files of the cache by itself: tried with a FUSE connection of our own."""

from __future__ import annotations

import os
import select
import tempfile
from pathlib import Path

from gpufs.errors import MountFailed
from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.negotiation import LARGEST_READ, agree
from gpufs.mounting import mount, open_device, unmount

from .disk import existing
from .finding import Finding, fail, ok, warn

_PATIENCE = 5.0  # seconds for the kernel's first request
_REQUEST_SIZE = (1 << 20) + 8192  # bytes: more than the largest request, or the read fails


def passthrough(directory: Path, uid: int) -> Finding:
    """`directory` is the cache's; nothing is left of the mount that this takes."""
    if uid != 0:
        return warn(
            "passthrough",
            "only for root: cached files are read through gpufs, at half the speed",
            "mount as root, say with fstab or systemd (allow_other lets users read)",
        )
    try:
        return _try(existing(directory))
    except MountFailed as error:
        return fail("passthrough", str(error), "see the check of the device")
    except OSError as error:
        return warn(
            "passthrough", f"cannot be tried: {error.strerror}", "see the checks of device and cache_dir"
        )


def _try(directory: Path) -> Finding:
    device = Device(open_device())
    try:
        with tempfile.TemporaryDirectory(prefix="gpufs-doctor-") as where:
            mount(device.fd, "gpufs-doctor", where, allow_other=False, max_read=LARGEST_READ)
            try:
                return _offer(device, directory)
            finally:
                unmount(where, lazy=True)
    finally:
        os.close(device.fd)


def _offer(device: Device, directory: Path) -> Finding:
    if not select.select([device.fd], [], [], _PATIENCE)[0]:
        return fail("passthrough", "the kernel does not begin to talk to a new mount", "look into dmesg")
    buffer = bytearray(_REQUEST_SIZE)
    size = os.readv(device.fd, [buffer])
    _, _, unique, _ = wire.IN_HEADER.unpack_from(buffer)
    agreement, reply = agree(memoryview(buffer)[wire.IN_HEADER_SIZE : size], True)
    device.reply(unique, reply)
    if not agreement.passthrough:
        return warn(
            "passthrough",
            "this kernel has none: cached files are read through gpufs, at half the speed",
            "use Linux 6.9 or newer, built with CONFIG_FUSE_PASSTHROUGH",
        )
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            device.backing_close(device.backing_open(file.fileno()))
        except OSError as error:
            return warn(
                "passthrough",
                f"the kernel refuses files of {directory} ({error.strerror}): they are read through gpufs, "
                "at half the speed",
                "choose a cache_dir on ext4 or XFS; overlay and other stacked file systems cannot do it",
            )
    return ok("passthrough", "works: the kernel reads cached files by itself")
