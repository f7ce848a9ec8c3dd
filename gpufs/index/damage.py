"""Tells a damaged LMDB file from a sound one before LMDB maps it.

LMDB trusts its file: a page number that points behind the end of a truncated file is a SIGBUS, not
an error. So the pages above the leaves are walked here (about 300 for a million files) and every
page they point to must exist. Layout: `mdb.c` of LMDB 0.9, data format 1.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_MAGIC = 0xBEEFC0DE
_FORMAT = 1
_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = struct.Struct("<IIQQ48s48sQQ")  # magic, format, address, map size, free db, main db, last, txn
_DB = struct.Struct("<IHHQQQQQ")  # pad (page size in the free db), flags, depth, 3 x pages, entries, root
_NODE = struct.Struct("<HHHH")  # low, high, flags, key size
_BRANCH, _LEAF, _METAPAGE = 0x01, 0x02, 0x08
_SUBDATABASE = 0x02
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32


def find_damage(path: Path) -> str | None:
    """What is wrong with the data file at `path`, in a few words; None when it can be opened.

    Only for a file that nobody writes meanwhile.
    """
    with path.open("rb") as file:
        try:
            return _Check(file, path.stat().st_size).run()
        except struct.error:
            return "a page is cut short"


class _Check:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._page_size = 0

    def run(self) -> str | None:
        first = self._meta(0)
        if first is None:
            return "no LMDB header"
        self._page_size = _DB.unpack(first[4])[0]
        if self._page_size < 512 or self._page_size > 65536:
            return "impossible page size"
        second = self._meta(self._page_size)
        if second is None:
            return "no second LMDB header"
        newest = max(first, second, key=lambda meta: int(meta[7]))
        return self._database(newest[4], named=False) or self._database(newest[5], named=True)

    def _meta(self, offset: int) -> tuple[int, int, int, int, bytes, bytes, int, int] | None:
        self._file.seek(offset)
        data = self._file.read(_PAGE.size + _META.size)
        if len(data) < _PAGE.size + _META.size or not _PAGE.unpack_from(data)[2] & _METAPAGE:
            return None
        magic, form, address, map_size, free, main, last, txn = _META.unpack_from(data, _PAGE.size)
        if magic != _MAGIC or form != _FORMAT:
            return None
        return magic, form, address, map_size, free, main, last, txn

    def _database(self, header: bytes, *, named: bool) -> str | None:
        fields = _DB.unpack(header)
        depth, root = fields[2], fields[7]
        if root == _NO_PAGE:
            return None
        if not 0 < depth <= _DEPTH_MAX:
            return "impossible tree depth"
        return self._tree(root, depth, named=named)

    def _tree(self, root: int, depth: int, *, named: bool) -> str | None:
        """Walk the branch pages; the leaf level only when it holds the headers of named databases."""
        level = [root]
        for below in range(depth - 1, -1, -1):
            following: list[int] = []
            for number in level:
                if (number + 1) * self._page_size > self._size:
                    return f"page {number} lies behind the end of the file"
                if below == 0 and not named and number != root:
                    continue
                page = self._page(number, _BRANCH if below else _LEAF)
                if page is None:
                    return f"page {number} is not what it should be"
                if below:
                    following += _targets(page)
                elif named:
                    for header in _subdatabases(page):
                        problem = self._database(header, named=False)
                        if problem is not None:
                            return problem
            level = following
        return None

    def _page(self, number: int, kind: int) -> bytes | None:
        self._file.seek(number * self._page_size)
        page = self._file.read(self._page_size)
        stored, _, flags, lower, upper = _PAGE.unpack_from(page)
        sound = stored == number and flags & kind and _PAGE.size <= lower <= upper <= self._page_size
        return page if sound else None


def _nodes(page: bytes) -> tuple[int, ...]:
    count = (_PAGE.unpack_from(page)[3] - _PAGE.size) // 2
    return struct.unpack_from(f"<{count}H", page, _PAGE.size)


def _targets(page: bytes) -> list[int]:
    found = []
    for at in _nodes(page):
        low, high, top, _ = _NODE.unpack_from(page, at)
        found.append(low | high << 16 | top << 32)
    return found


def _subdatabases(page: bytes) -> list[bytes]:
    found = []
    for at in _nodes(page):
        _, _, flags, key_size = _NODE.unpack_from(page, at)
        if flags & _SUBDATABASE:
            start = at + _NODE.size + key_size
            found.append(page[start : start + _DB.size])
    return found
