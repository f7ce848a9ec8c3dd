"""What a web server shows: directories by their index pages, or the files a manifest names."""

from .index import HttpSource
from .manifest import ManifestSource

__all__ = ["HttpSource", "ManifestSource"]
