"""Objects of the remote dataset on a local disk."""

from gpufs.cache.checksum import CHUNK
from gpufs.cache.entry import charge_of
from gpufs.cache.partial import Partial
from gpufs.cache.policy import Purpose
from gpufs.cache.space import Limit, Usage
from gpufs.cache.store import Cache

__all__ = ["CHUNK", "Cache", "Limit", "Partial", "Purpose", "Usage", "charge_of"]
