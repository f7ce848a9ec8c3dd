"""Asking daemons for their figures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpufs.control import client
from gpufs.control.paths import Mount
from gpufs.errors import GpufsError
from gpufs.observe.exposition import Silent
from gpufs.observe.figures import Figures

PATIENCE = 5.0  # seconds for an answer; Prometheus gives up after 10
_AT_ONCE = 16

log = logging.getLogger("gpufs.observe")


def figures_of(mount: Mount) -> Figures:
    """Raises what client.call() does."""
    return Figures.from_json(client.call(mount, "figures", timeout=PATIENCE))


def figures_of_all(mounts: Sequence[Mount]) -> list[Figures | Silent]:
    """All at once: one that hangs holds up nobody else."""
    if not mounts:
        return []
    with ThreadPoolExecutor(min(len(mounts), _AT_ONCE)) as pool:
        return list(pool.map(_figures_or_silence, mounts))


def _figures_or_silence(mount: Mount) -> Figures | Silent:
    try:
        return figures_of(mount)
    except GpufsError as error:
        log.warning("%s", error)
        return Silent(mount.mountpoint, mount.source)
