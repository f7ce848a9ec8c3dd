"""Sorts objects by their keys, however many there are, in little memory."""

from __future__ import annotations

import heapq
import marshal
import struct
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from gpufs.source.flat.listing import Listed

_RUN = 200_000  # objects sorted in memory: about 60 MiB
_BLOCK = 2000  # objects written and read together
_LENGTH = struct.Struct("=I")  # of a block in bytes, before it
_key = itemgetter(0)


def in_order(objects: Iterable[Listed], scratch: Path) -> Iterator[Listed]:
    """The objects by their keys; of several with one key the one modified last.

    Everything is read before the first comes out. What does not fit is kept in files without a name in
    `scratch`; runs that follow upon one another are read in turn and not merged.
    """
    source = iter(objects)
    runs: list[tuple[bytes, bytes, BinaryIO]] = []
    try:
        while True:
            run = sorted(islice(source, _RUN), key=_key)
            if not runs and len(run) < _RUN:
                return _latest(run)
            if run:
                runs.append((run[0].key, run[-1].key, _spill(run, scratch)))
            if len(run) < _RUN:
                break
    except BaseException:
        for *_, file in runs:
            file.close()
        raise
    runs.sort(key=_key)
    apart = all(one[1] < other[0] for one, other in pairwise(runs))
    parts = [_read(file) for *_, file in runs]
    return _latest(_in_turn(parts) if apart else heapq.merge(*parts, key=_key))


def _latest(objects: Iterable[Listed]) -> Iterator[Listed]:
    waiting: Listed | None = None
    for item in objects:
        if waiting is not None and item.key == waiting.key:
            waiting = max(waiting, item, key=lambda one: one.mtime_ns)
            continue
        if waiting is not None:
            yield waiting
        waiting = item
    if waiting is not None:
        yield waiting


def _in_turn(parts: list[Iterator[Listed]]) -> Iterator[Listed]:
    for part in parts:
        yield from part


def _spill(run: list[Listed], scratch: Path) -> BinaryIO:
    file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115  # the caller's to close
    for at in range(0, len(run), _BLOCK):
        block = marshal.dumps([tuple(item) for item in run[at : at + _BLOCK]])
        file.write(_LENGTH.pack(len(block)) + block)
    file.seek(0)
    return file


def _read(file: BinaryIO) -> Iterator[Listed]:
    with file:
        while head := file.read(_LENGTH.size):
            # not marshal.load(): that calls read() for every few bytes
            yield from map(Listed._make, marshal.loads(file.read(*_LENGTH.unpack(head))))
