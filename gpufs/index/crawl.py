"""Takes a whole tree into the index, page by page, as a walk of the source gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpufs.index.index import Index
from gpufs.index.listing import Listing
from gpufs.index.records import Change
from gpufs.source.base import Batch


def take_in(
    index: Index,
    walk: Iterable[Batch],
    now_ns: Callable[[], int],
    *,
    stopping: Callable[[], bool] = lambda: False,
    report: Callable[[list[Change]], object] = lambda _: None,
) -> int | None:
    """The number of changes to what was known before; None when it was stopped before its end.

    `report` is told the changes of each batch once they are in the index. A batch is one transaction.
    """
    changed = 0
    listings: dict[bytes, Listing | None] = {}
    started = now_ns()
    for batch in walk:
        if stopping():
            return None
        changes: list[Change] = []
        with index.write() as writer:
            for page in batch:
                if page.directory not in listings:
                    number = writer.resolve(page.directory)
                    asked = page.asked_ns or started
                    listings[page.directory] = writer.begin(number, asked) if number else None
                listing = listings[page.directory]
                if listing is not None:
                    changes += writer.add(listing, page)
                    if page.last:
                        changes += writer.finish(listing)
                if page.last:
                    del listings[page.directory]
        if changes:
            report(changes)
            changed += len(changes)
        started = now_ns()
    with index.write() as writer:
        writer.mark_crawled()
    return changed
