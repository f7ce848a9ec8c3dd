"""Whole objects, many at once, by one thread: RPCs one after the other on few connections.

Compared with a thread for each this takes a fraction of the processors' time per small object
(docs/decisions.md). Only what is plain goes this way; NfsSource.read() does the rest: mounting, stale
handles, short reads, and every kind of failure.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpufs.errors import GpufsError
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef

from . import nfs3
from .entries import is_version
from .handles import Handles
from .rpc import Broken, Call, Connection, Refused
from .session import SILENCE, Root, Session

_CONNECTIONS = 2
_MOST_PIECES = 8  # of an object: larger ones are read() in a thread
_LOOK_EVERY = 1.0  # seconds between two looks for what is silent

Done = tuple[Any, memoryview | GpufsError | None]


@dataclass(slots=True, eq=False)
class _Transfer:
    """One object: names are looked up, one below the other, and then it is read."""

    ref: ObjectRef
    ticket: Any
    line: _Line
    root: Root
    handle: bytes
    path: bytes  # what has been looked up already
    names: list[bytes]  # what has not, the next one last
    heard: float
    body: memoryview | None = None
    pieces: int = 0  # on their way


@dataclass(slots=True, eq=False)
class _Line:
    connection: Connection
    waiting: dict[int, tuple[_Transfer, int]] = field(default_factory=dict)  # xid -> offset, once it reads
    heard: float = field(default_factory=time.monotonic)


class NfsDownloads:
    """For one thread."""

    def __init__(
        self,
        session: Session,
        handles: Handles,
        may_be_changing: Callable[[ObjectRef], bool],
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._handles = handles
        self._may_be_changing = may_be_changing
        self._metrics = metrics
        self._poll = select.epoll()
        self._lines: deque[_Line] = deque()
        self._made: deque[Connection] = deque()  # by the thread that connects
        self._connecting = threading.Lock()
        self._next_try = 0.0
        self._active: set[_Transfer] = set()
        self._look_at = math.inf

    def fileno(self) -> int:
        return self._poll.fileno()

    def timeout(self) -> float | None:
        if any(line.connection.unsent for line in self._lines):
            return 0
        return max(self._look_at - time.monotonic(), 0) if self._active else None

    def start(self, ref: ObjectRef, ticket: Any) -> bool:
        root = self._session.known_root
        if root is None or not 0 < ref.size <= root.read_most * _MOST_PIECES or self._may_be_changing(ref):
            return False
        self._welcome()
        if len(self._lines) < _CONNECTIONS and self._may_connect():
            threading.Thread(target=self._connect, name="gpufs nfs connect", daemon=True).start()
        if not self._lines:
            return False
        self._lines.rotate()
        line = self._lines[0]
        path, handle = self._nearest(ref.path, root)
        rest = ref.path[len(path) + 1 :] if path else ref.path
        names = rest.split(b"/")[::-1]
        now = time.monotonic()
        transfer = _Transfer(ref, ticket, line, root, handle, path, names, now)
        if not self._active:
            self._look_at = now + _LOOK_EVERY
        self._active.add(transfer)
        self._metrics.remote_requests.add()
        self._ask(transfer, nfs3.lookup(handle, names[-1]), 0)
        return True

    def turn(self) -> Sequence[Done]:
        done: list[Done] = []
        by_descriptor = {line.connection.fileno(): line for line in self._lines}
        for descriptor, _ in self._poll.poll(0):
            line = by_descriptor[descriptor]
            try:
                done += self._answers(line)
            except Broken:
                done += self._break(line)
        for line in list(self._lines):
            if line.connection.unsent:
                try:
                    line.connection.send()
                    events = select.EPOLLIN | (select.EPOLLOUT if line.connection.unsent else 0)
                    self._poll.modify(line.connection, events)
                except Broken:
                    done += self._break(line)
        if time.monotonic() >= self._look_at:
            done += self._silent()
        return done

    def intact(self, ref: ObjectRef, data: memoryview) -> bool:
        return True  # NFS has no checksums

    def close(self) -> None:
        with self._connecting:  # the thread that connects has ended then
            self._welcome()
        for line in self._lines:
            line.connection.close()
        self._poll.close()

    # -- one object

    def _nearest(self, path: bytes, root: Root) -> tuple[bytes, bytes]:
        """The nearest directory above that has been looked up, and its handle."""
        while path := path.rpartition(b"/")[0]:
            handle = self._handles.get(path)
            if handle is not None:
                return path, handle
        return b"", root.handle

    def _ask(self, transfer: _Transfer, call: Call, offset: int) -> None:
        transfer.line.waiting[transfer.line.connection.put(call)] = transfer, offset

    def _answers(self, line: _Line) -> Iterator[Done]:
        """What is complete, or has failed, with the answers that came on this connection."""
        for xid, answer in line.connection.receive():
            line.heard = time.monotonic()
            transfer, offset = line.waiting.pop(xid, (None, 0))
            if transfer is None or transfer not in self._active:
                continue  # it was given up
            transfer.heard = line.heard
            try:
                if isinstance(answer, Refused):
                    complete = False
                    raise answer
                complete = self._take(transfer, answer, offset)
            except (Refused, nfs3.Failed, nfs3.Malformed, _Unusual):
                self._handles.drop(transfer.ref.path)
                yield self._end(transfer, None)
            else:
                if complete:
                    yield self._end(transfer, transfer.body)

    def _take(self, transfer: _Transfer, answer: memoryview, offset: int) -> bool:
        """Do what follows from an answer; True when the object is complete."""
        ref = transfer.ref
        if transfer.names:
            transfer.handle, _ = nfs3.looked_up(answer)
            name = transfer.names.pop()
            if transfer.names:
                transfer.path = transfer.path + b"/" + name if transfer.path else name
                self._handles.put(transfer.path, transfer.handle)
                self._ask(transfer, nfs3.lookup(transfer.handle, transfer.names[-1]), 0)
                return False
            most = transfer.root.read_most
            for at in range(0, ref.size, most):
                self._ask(transfer, nfs3.read(transfer.handle, at, min(most, ref.size - at)), at)
                transfer.pieces += 1
            return False
        data, after = nfs3.piece(answer)
        if after is None or not is_version(after, ref):
            raise _Unusual
        if len(data) != min(transfer.root.read_most, ref.size - offset):
            raise _Unusual
        transfer.pieces -= 1
        if len(data) == ref.size:
            transfer.body = data.toreadonly()
            return True
        if transfer.body is None:
            transfer.body = memoryview(bytearray(ref.size))
        transfer.body[offset : offset + len(data)] = data
        return transfer.pieces == 0

    def _end(self, transfer: _Transfer, data: memoryview | None) -> Done:
        self._active.discard(transfer)
        if data is not None:
            self._metrics.remote_bytes.add(len(data))
        else:
            self._metrics.remote_errors.add()
        return transfer.ticket, data

    # -- connections

    def _may_connect(self) -> bool:
        return time.monotonic() >= self._next_try and self._connecting.acquire(blocking=False)

    def _connect(self) -> None:
        """Thread."""
        try:
            self._made.append(self._session.connect(SILENCE))
        except Broken:
            self._next_try = time.monotonic() + _LOOK_EVERY  # read() will say why
        finally:
            self._connecting.release()

    def _welcome(self) -> None:
        while self._made:
            connection = self._made.popleft()
            self._poll.register(connection, select.EPOLLIN)
            self._lines.append(_Line(connection))

    def _break(self, line: _Line) -> list[Done]:
        """Give up a connection with all that it was to bring."""
        self._poll.unregister(line.connection)
        line.connection.close()
        self._lines.remove(line)
        lost = {transfer for transfer, _ in line.waiting.values() if transfer in self._active}
        return [self._end(transfer, None) for transfer in lost]

    def _silent(self) -> list[Done]:
        """Give up what has brought nothing for SILENCE, and connections that bring nothing at all."""
        now = time.monotonic()
        done: list[Done] = []
        for line in list(self._lines):
            oldest = min((t.heard for t, _ in line.waiting.values() if t in self._active), default=now)
            if now - max(line.heard, oldest) > SILENCE:
                done += self._break(line)
        late = [transfer for transfer in self._active if now - transfer.heard > SILENCE]
        done += [self._end(transfer, None) for transfer in late]
        self._look_at = now + _LOOK_EVERY if self._active else math.inf
        return done


class _Unusual(Exception):
    """An answer that read() has to look into."""
