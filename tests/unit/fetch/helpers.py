"""An index with files in its root, and traffic that nothing slows, for tests of what fetches them."""

from __future__ import annotations

import os

from gpufs.fetch.page import FETCH, SharedPage
from gpufs.fetch.traffic import Traffic
from gpufs.index import ROOT, Index, Inode
from gpufs.metrics import Metrics
from gpufs.source.base import Entry, Kind, Page


def add_files(index: Index, count: int, size: int) -> list[Inode]:
    """`count` files of `size` bytes: 000000, 000001 and so on, of versions v0, v1 and so on."""
    entries = [Entry(b"%06d" % n, Kind.FILE, size, 1, f"v{n}") for n in range(count)]
    with index.write() as writer:
        listing = writer.begin(ROOT, 1)
        writer.add(listing, Page(b"", entries, [], True))
        writer.finish(listing)
    return index.children(ROOT, None, count)


def traffic_of(metrics: Metrics, process: int = FETCH, bandwidth_limit: int | None = None) -> Traffic:
    """With a page of its own."""
    page = SharedPage()
    os.close(page.fd)  # the memory lives on
    return Traffic(page, process, bandwidth_limit, metrics)
