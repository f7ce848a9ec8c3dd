"""A second cache, in an object store, that several hosts share: between the local one and the source."""

from __future__ import annotations

from collections.abc import Callable

from gpufs.errors import UsageError
from gpufs.metrics import Metrics
from gpufs.options import Options
from gpufs.source import open_source
from gpufs.source.s3 import S3Settings, S3Source

from .entry import Part, part_of
from .thread import TierThread
from .tier import State, Tier
from .wire import Wire

__all__ = ["FLUSH", "Part", "State", "Tier", "TierThread", "open_tier", "part_of"]

FLUSH = 3.0  # seconds, at the end, for what is to be written


def open_tier(options: Options, metrics: Metrics, tell: Callable[[State], None]) -> Tier | None:
    """The shared cache of a mount, if it has one; nothing is asked of it yet. Raises UsageError."""
    if options.shared_cache is None:
        return None
    return Tier(Wire(_store(options)), options.shared_cache, metrics, tell)


def _store(options: Options) -> S3Source:
    assert options.shared_cache is not None
    settings = S3Settings(
        endpoint_url=options.shared_cache_endpoint_url,
        profile=options.shared_cache_profile,
        ca_bundle=options.ca_bundle,
    )
    # What is asked of it counts as what is asked of the shared cache, not of the source.
    store = open_source(options.shared_cache, settings, Metrics())
    if not isinstance(store, S3Source):
        raise UsageError("shared_cache must be s3://bucket[/prefix]; any server of S3 will do")
    return store
