"""The rows of an inventory, as objects: CSV with named columns, and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

import zstandard

from gpufs.errors import MountFailed
from gpufs.source.flat.listing import Listed
from gpufs.source.flat.versions import version_of

PLAIN_COLUMNS = ("key", "size", "etag", "mtime")
_ROWS = 65536  # of a Parquet file that are decoded together
_TRUE = ("true", True)


class Refused(Exception):
    """A row that cannot be read, and why."""


class Columns:
    """Makes objects of rows whose values stand in the order of `names` (lower case)."""

    def __init__(self, names: Sequence[str], *, encoded: bool) -> None:
        """`encoded`: keys are as in a URL."""
        for needed in ("key", "size"):
            if needed not in names:
                raise Refused(f"there is no column {needed!r} among {', '.join(names)}")
        self._width = len(names)
        self._key, self._size = names.index("key"), names.index("size")
        self._etag, self._mtime = _index(names, "etag"), _index(names, "mtime")
        self._latest, self._marker = _index(names, "islatest"), _index(names, "isdeletemarker")
        if self._etag is None and self._mtime is None:
            raise Refused("there is neither a column of ETags nor one of times: nothing tells versions apart")
        self._encoded = encoded

    def object(self, row: Sequence[Any]) -> Listed | None:
        """The object of a row, None for one that is not there any more. Raises Refused."""
        if len(row) != self._width:
            raise Refused(f"{len(row)} columns in place of {self._width}")
        if self._latest is not None and row[self._latest] not in _TRUE:
            return None
        if self._marker is not None and row[self._marker] in _TRUE:
            return None
        try:
            size = int(row[self._size])
            mtime_ns = _nanoseconds(row[self._mtime]) if self._mtime is not None else 0
        except (ValueError, TypeError, OverflowError) as error:
            raise Refused(f"a value that cannot be read: {error}") from None
        etag = row[self._etag] or "" if self._etag is not None else ""
        if size < 0 or not row[self._key]:
            raise Refused("the size is negative" if size < 0 else "the key is empty")
        if not etag and not mtime_ns:
            raise Refused("neither an ETag nor a time: nothing tells versions apart")
        key = _unquote(row[self._key]) if self._encoded else row[self._key].encode()
        return Listed(key, size, mtime_ns, version_of(etag, mtime_ns, size))


def csv_rows(file: BinaryIO, names: Sequence[str] | None, shown: str) -> Iterator[Listed]:
    """The objects of a CSV file; without `names` it is a plain list, whose first row may name its columns.

    Raises MountFailed, with the number of the line.
    """
    text = io.TextIOWrapper(file, "utf-8", newline="")
    reader = csv.reader(text, strict=True)
    columns: Columns | None = None
    try:
        if names is not None:
            columns = Columns(names, encoded=True)
        for row in reader:
            if columns is None:
                head = [name.strip().lower() for name in row]
                named = "key" in head and "size" in head
                columns = Columns(head if named else PLAIN_COLUMNS[: len(row)], encoded=True)
                if named:
                    continue
            if row and (found := columns.object(row)) is not None:
                yield found
    except (Refused, csv.Error, UnicodeDecodeError) as error:
        raise MountFailed(f"index_from: {shown}, line {reader.line_num}: {error}") from error
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise MountFailed(f"index_from: {shown}: behind line {reader.line_num}: {error}") from error
    finally:
        text.detach()  # the file is the caller's to close


def parquet_rows(file: BinaryIO, shown: str) -> Iterator[Listed]:
    """The objects of a Parquet file of S3 Inventory. Raises MountFailed."""
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise MountFailed(
            "index_from: an inventory in Parquet needs pyarrow: pip install 'gpufs[parquet]'"
        ) from None
    at = 0
    try:
        table = parquet.ParquetFile(file)
        names = [name for name in table.schema_arrow.names if _column(name) in _WANTED]
        columns = Columns([_column(name) for name in names], encoded=False)
        for batch in table.iter_batches(_ROWS, columns=names):
            for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                at += 1
                if (found := columns.object(row)) is not None:
                    yield found
    except (Refused, OSError, ValueError) as error:  # what pyarrow raises is one of these
        raise MountFailed(f"index_from: {shown}, row {at}: {error}") from error


def manifest_columns(schema: str) -> list[str]:
    """The columns that a CSV manifest names: `Bucket, Key, ...`."""
    return [_column(name.strip()) for name in schema.split(",")]


def unpacked(file: BinaryIO, name: str) -> BinaryIO:
    """The contents of a file that is packed as its name says."""
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]  # it reads as one
    if name.endswith(".zst"):
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
    return file


_WANTED = frozenset({"key", "size", "etag", "mtime", "islatest", "isdeletemarker"})


def _column(name: str) -> str:
    """One name for what CSV calls `LastModifiedDate` and Parquet `last_modified_date`."""
    plain = name.lower().replace("_", "").replace("-", "")
    return {"lastmodifieddate": "mtime", "lastmodified": "mtime"}.get(plain, plain)


def _index(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if name in names else None


def _unquote(text: str) -> bytes:
    if "+" in text:
        text = text.replace("+", " ")
    return unquote_to_bytes(text) if "%" in text else text.encode()


def _nanoseconds(value: Any) -> int:
    """Of an ISO 8601 time, seconds since the epoch, or a datetime; 0 for none."""
    if not value:
        return 0
    if isinstance(value, str):
        if value.replace(".", "", 1).isdecimal():
            seconds, _, rest = value.partition(".")
            return int(seconds) * 1_000_000_000 + int(rest.ljust(9, "0")[:9] or 0)
        value = datetime.fromisoformat(value)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    whole: int = int(value.timestamp())
    return whole * 1_000_000_000 + int(value.microsecond) * 1000
