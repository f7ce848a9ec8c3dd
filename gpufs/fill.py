"""`python -m gpufs.fill`: fills the index of a mount from an inventory, before it is mounted.

A process of its own, with the mount's configuration on stdin: what it needs goes with it. It says on stdout
what it did, and on stderr, ending with 1, why it could not.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

from gpufs.cache import Cache
from gpufs.errors import GpufsError, MountFailed
from gpufs.index import ROOT, Index, take_in
from gpufs.inventory import open_inventory
from gpufs.metrics import Metrics
from gpufs.options import MountConfig
from gpufs.source import Source, open_configured


def fill(config: MountConfig) -> str | None:
    """Fill the index from `index_from`; a line for people. None when it is as new already.

    Raises GpufsError. What is interrupted leaves the root of the tree unlisted, so that the next mount fills
    the index again, or lists it.
    """
    options, metrics = config.options, Metrics()
    assert options.index_from is not None
    source = open_configured(config, metrics)
    if not source.abilities.flat_listing:
        raise MountFailed(f"index_from is for object stores; {config.source} is none")
    cache = Cache(
        Path(options.cache_dir), cache_size=options.cache_size, min_free=options.min_free, metrics=metrics
    )
    try:
        directory = cache.index_directory(source.id)
        index = Index(directory, source.id)
        try:
            begin = time.monotonic()

            def open_bucket(url: str) -> Source:
                return open_configured(MountConfig(url, config.mountpoint, options), metrics)

            bucket = config.source.partition("://")[2].partition("/")[0]
            inventory = open_inventory(options.index_from, bucket, open_bucket, directory)
            listed = index.listed(ROOT)
            if index.crawled() and listed is not None and listed.at_ns >= inventory.time_ns:
                return None
            take_in(index, inventory.walk(source.key(b"")), time.time_ns)
            files = index.totals().files
        finally:
            index.close()
    finally:
        cache.close()
        source.close()
    return f"{files:,} files from {options.index_from} in {time.monotonic() - begin:.1f} s"


def main() -> int:
    gc.disable()  # a million rows make no cycles, and looking for some takes a tenth of the time
    config = MountConfig.from_json(sys.stdin.read())
    try:
        told = fill(config)
    except GpufsError as error:
        print(error, file=sys.stderr)
        return 1
    if told is not None:
        print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
