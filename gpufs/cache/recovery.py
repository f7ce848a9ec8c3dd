"""What the first user of a cache directory does after the last one, and how the catalogue meets the files."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager

from gpufs.cache.catalogue import Catalogue
from gpufs.cache.checksum import NO_HASH
from gpufs.cache.entry import COMPRESSED, NOW, Entry, Kind
from gpufs.cache.layout import Layout, move_tree, remove_tree, unlink, walk_objects
from gpufs.cache.partial import held_bytes
from gpufs.cache.sharing import State


def recover(layout: Layout, left: State | None, boot_id: str) -> list[bytes]:
    """Set aside what cannot be trusted; the digests that were dropped. OSError.

    May be interrupted anywhere and done again.
    """
    dropped: list[bytes] = []
    trusted = left is not None and (left.clean or left.boot_id == boot_id)
    if not trusted:
        # The machine went down with data on its way to the disk.
        move_tree(layout.objects, layout.unverified)
        for name in _partial_names(layout):
            with contextlib.suppress(ValueError):
                dropped.append(bytes.fromhex(name))
        remove_tree(layout.partial)
        remove_tree(layout.index)
    layout.clear_temporary()
    return dropped


def reconcile(
    layout: Layout,
    catalogue: Catalogue,
    gate: Callable[[], AbstractContextManager[None]],
    stop: Callable[[], bool],
) -> bool:
    """Make the catalogue say what is on the disk; False when stopped before the end. OSError."""
    for top in (layout.objects, layout.unverified):
        for digest, path in walk_objects(top):
            if stop():
                return False
            _check_object(catalogue, digest, path, 0)
    for digest, path in walk_objects(layout.compressed):
        if stop():
            return False
        if layout.has_plain(digest):
            # Killed between making the one and removing the other.
            unlink(path)
        else:
            _check_object(catalogue, digest, path, COMPRESSED)
    for name in _partial_names(layout):
        with gate(), contextlib.suppress(FileNotFoundError):
            _check_partial(layout, catalogue, name)
    for digest in catalogue.digests():
        if stop():
            return False
        entry = catalogue.get(digest)
        if entry is not None and not layout.has_any(digest):
            catalogue.remove(digest, entry)
    return True


def _check_object(catalogue: Catalogue, digest: bytes, path: str, mark: int) -> None:
    known = catalogue.get(digest)
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return
    same = known is not None and known.kind is Kind.OBJECT and known.marks & COMPRESSED == mark
    if known is None or not same or known.size != found.st_size:
        # Published in the last second before a crash, or the catalogue was lost. Its checksum is not
        # computed now: that would read it all.
        entry = Entry(found.st_size, NO_HASH, found.st_mtime_ns, Kind.OBJECT, "", mark)
        catalogue.put(digest, entry)


def _partial_names(layout: Layout) -> list[str]:
    try:
        return sorted({name.removesuffix(".map") for name in os.listdir(layout.partial)})
    except FileNotFoundError:
        return []


def _check_partial(layout: Layout, catalogue: Catalogue, name: str) -> None:
    path = f"{layout.partial}/{name}"
    try:
        digest = bytes.fromhex(name)
        size = os.stat(path, follow_symlinks=False).st_size
        with open(path + ".map", "rb") as file:
            hashes = array("Q", file.read())
    except (FileNotFoundError, ValueError):
        # One half of a pair is of no use to anybody.
        unlink(path)
        unlink(path + ".map")
        return
    known = catalogue.get(digest)
    held = held_bytes(hashes.tolist(), size)
    if known is None or known.size != held:
        source = known.source if known is not None else ""
        catalogue.put(digest, Entry(held, NO_HASH, NOW, Kind.PARTIAL, source))
