"""The metadata index: what the remote dataset is known to hold, kept in LMDB across mounts."""

from gpufs.index.crawl import take_in
from gpufs.index.index import Index
from gpufs.index.listing import Listing, Writer
from gpufs.index.records import ROOT, Change, Inode, Listed, Totals

__all__ = ["ROOT", "Change", "Index", "Inode", "Listed", "Listing", "Totals", "Writer", "take_in"]
