"""An S3 Inventory, or a plain list of objects, as a walk of the tree below one prefix."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from gpufs.errors import MountFailed
from gpufs.source.base import Batch, Source
from gpufs.source.flat.listing import Listed
from gpufs.source.flat.tree import Walk

from .files import Files, LocalFiles, RemoteFiles
from .order import in_order
from .rows import csv_rows, manifest_columns, parquet_rows, unpacked

_BATCH = 4000  # objects that go into the index together
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Inventory:
    """`time_ns`: the state of the bucket that it shows is of that time or later."""

    time_ns: int
    objects: Callable[[], Iterator[Listed]]
    scratch: Path

    def walk(self, base: bytes) -> Iterator[Batch]:
        """The tree below the prefix `base` (empty, or ending in a slash), as a source's walk gives it.

        Everything is read before the first batch comes. Raises MountFailed, naming file and line.
        """
        walk, found = Walk(), False
        ordered = in_order(_below(self.objects(), base), self.scratch)
        while objects := list(islice(ordered, _BATCH)):
            found = True
            yield [replace(page, asked_ns=self.time_ns) for page in walk.feed(objects)]
        if base and not found:
            raise MountFailed(f"index_from: no key in it starts with {os.fsdecode(base)!r}")
        yield [replace(page, asked_ns=self.time_ns) for page in walk.finish()]


def open_inventory(name: str, bucket: str, open_bucket: Callable[[str], Source], scratch: Path) -> Inventory:
    """The inventory in the file `name` (a path or a URL): a manifest.json of S3 Inventory, or a plain list.

    `bucket` is the one that is mounted; `open_bucket` opens a store by its URL. Raises MountFailed.
    """
    files: Files = RemoteFiles(name, open_bucket, scratch) if "://" in name else LocalFiles(Path(name))
    if not name.endswith(".json"):
        return Inventory(files.modified_ns(), lambda: _rows(files, "", None, name), scratch)
    with files.open("") as file:
        manifest = _parsed(file.read(), files.shown(""))
    try:
        source, form = str(manifest["sourceBucket"]), str(manifest["fileFormat"])
        time_ns = int(manifest["creationTimestamp"]) * 1_000_000
        names = manifest_columns(str(manifest["fileSchema"])) if form == "CSV" else []
        parts = [(str(part["key"]), str(part.get("MD5checksum", ""))) for part in manifest["files"]]
    except (KeyError, TypeError, ValueError) as error:
        raise MountFailed(
            f"index_from: {files.shown('')} is no manifest of S3 Inventory (what is wrong: {error})"
        ) from error
    if source != bucket:
        raise MountFailed(f"index_from: this is an inventory of the bucket {source}, not of {bucket}")
    if form not in ("CSV", "Parquet"):
        raise MountFailed(f"index_from: an inventory in {form} cannot be read; choose CSV or Parquet")

    def objects() -> Iterator[Listed]:
        for key, md5 in parts:
            yield from _data(files, key, md5, names if form == "CSV" else None)

    return Inventory(time_ns, objects, scratch)


def _parsed(text: bytes, shown: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise MountFailed(f"index_from: {shown} is not valid JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def _data(files: Files, key: str, md5: str, names: list[str] | None) -> Iterator[Listed]:
    shown = files.shown(key)
    with files.open(key) as file:
        _check(file, md5, shown)
        if names is None:
            yield from parquet_rows(file, shown)
        else:
            yield from csv_rows(unpacked(file, key), names, shown)


def _rows(files: Files, key: str, names: list[str] | None, name: str) -> Iterator[Listed]:
    with files.open(key) as file:
        yield from csv_rows(unpacked(file, name), names, files.shown(key))


def _check(file: BinaryIO, md5: str, shown: str) -> None:
    """Compare with the checksum in the manifest, where there is one."""
    if not md5:
        return
    digest = hashlib.md5(usedforsecurity=False)
    while piece := file.read(_PIECE):
        digest.update(piece)
    if digest.hexdigest() != md5.lower():
        raise MountFailed(f"index_from: {shown} is not as the manifest says: its MD5 is another one")
    file.seek(0)


def _below(objects: Iterable[Listed], base: bytes) -> Iterator[Listed]:
    """The objects whose keys start with `base`, with the rest of their keys."""
    if not base:
        yield from objects
        return
    cut = len(base)
    for item in objects:
        if item.key.startswith(base):
            yield item._replace(key=item.key[cut:])
