"""What it takes to talk to one export: connections, and the root's handle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpufs.errors import AccessDenied, GpufsError, NotFound, RemoteFailed
from gpufs.source.retry import Retry

from . import mountd, nfs3
from .rpc import Broken, Call, Connection, Identity, Refused, connect, exchange
from .settings import NfsSettings, Place
from .translate import translated

T = TypeVar("T")

STALE = frozenset({nfs3.STALE, nfs3.BADHANDLE})  # a handle that has to be looked up anew
SILENCE = 10.0  # seconds without a byte from the server after which a connection is given up
_CONNECTIONS = 16  # at once, for requests that each have one to themselves
_READ_MOST = 1 << 20  # bytes asked for by one READ; several are on their way at once
_CLOCK_STEP_NS = 20_000_000  # at least: kernels stamp files with the time of the last timer tick


@dataclass(frozen=True, slots=True)
class Root:
    """The data set's root directory, as the server knows it now."""

    handle: bytes
    read_most: int  # bytes of one READ
    clock_step_ns: int


class Session:
    """Thread-safe. Making one does no input or output at all."""

    def __init__(self, place: Place, settings: NfsSettings, retry: Retry) -> None:
        self.place = place
        self.identity: Identity = settings.identity()
        self._settings = settings
        self._retry = retry
        self._lock = threading.Lock()
        self._lock_for_mounting = threading.Lock()
        self._root: Root | None = None
        self._free = threading.Semaphore(_CONNECTIONS)
        self._idle: list[Connection] = []
        self._closed = False

    def run(
        self,
        what: str,
        attempt: Callable[[Requests], T],
        *,
        deadline: float | None = None,
        spent: float = 0.0,
        waited: float = 0.0,
    ) -> T:
        """What `attempt` returns, repeated as long as it makes sense; errors are those of gpufs."""

        def once(left: float) -> T:
            requests = Requests(self, time.monotonic() + left)
            with translated(what, self.identity):
                return attempt(requests)

        return self._retry.run(what, once, deadline=deadline, spent=spent, waited=waited)

    def prepare(self, deadline: float) -> None:
        """Have everything there that the first read would wait for. What fails is left to that."""
        with suppress(Broken, Refused, nfs3.Failed, nfs3.Malformed, GpufsError):
            self.root(time.monotonic() + deadline)

    # -- connections

    def connect(self, timeout: float) -> Connection:
        """One of the caller's own. Raises Broken."""
        return connect(self.place.host, self.place.port, self.identity, min(timeout, SILENCE))

    def exchange(self, calls: Sequence[Call], end: float) -> Sequence[memoryview]:
        if not self._free.acquire(timeout=max(end - time.monotonic(), 0)):
            raise Broken("all connections wait for the server", silent=True)
        try:
            connection = self._take() or self.connect(end - time.monotonic())
            try:
                answers = exchange(connection, calls, SILENCE, end)
            except BaseException:
                connection.close()
                self._drop_idle()  # they go the same way, if the server was restarted
                raise
            self._put_back(connection)
            return answers
        finally:
            self._free.release()

    def _take(self) -> Connection | None:
        with self._lock:
            if self._closed:
                raise Broken(f"{self.place} is closed")
            return self._idle.pop() if self._idle else None

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._drop_idle()

    # -- the root

    @property
    def known_root(self) -> Root | None:
        return self._root

    def root(self, end: float) -> Root:
        root = self._root
        if root is not None:
            return root
        if not self._lock_for_mounting.acquire(timeout=max(end - time.monotonic(), 0)):
            raise Broken("another request is still trying to get at the export", silent=True)
        try:
            if self._root is None:
                handle = self._mount(end)
                (answer,) = self.exchange([nfs3.fsinfo(handle)], end)
                limits = nfs3.limits(answer)
                step = max(limits.clock_step_ns, _CLOCK_STEP_NS)
                self._root = Root(handle, min(limits.read, _READ_MOST), step)
            return self._root
        finally:
            self._lock_for_mounting.release()

    def forget_root(self, root: Root) -> None:
        """It is stale."""
        if self._root is root:
            self._root = None

    def _mount(self, end: float) -> bytes:
        """The handle of the directory, be it an export or below one."""
        port = self._settings.mount_port or self._find_mount_port(end)
        try:
            connection = connect(self.place.host, port, self.identity, min(end - time.monotonic(), SILENCE))
        except Broken as error:
            hint = "this is its MOUNT service; see the option nfs_mount_port"
            raise Broken(f"{error}; {hint}", silent=error.silent) from error
        try:
            return self._mount_through(connection, end)
        finally:
            connection.close()

    def _mount_through(self, connection: Connection, end: float) -> bytes:
        parts = self.place.path[1:].split(b"/") if self.place.path != b"/" else []
        first: mountd.NotMounted | None = None
        for depth in range(len(parts), -1, -1):
            path = b"/" + b"/".join(parts[:depth])
            (answer,) = exchange(connection, [mountd.mount(path)], SILENCE, end)
            try:
                handle = mountd.root(answer)
            except mountd.NotMounted as error:
                first = first or error
                continue
            return self._go_down(handle, parts[depth:], end)
        assert first is not None
        (answer,) = exchange(connection, [mountd.list_exports()], SILENCE, end)
        raise self._not_exported(first, mountd.exports(answer))

    def _go_down(self, handle: bytes, parts: list[bytes], end: float) -> bytes:
        for part in parts:
            (answer,) = self.exchange([nfs3.lookup(handle, part)], end)
            handle, _ = nfs3.looked_up(answer)
        return handle

    def _not_exported(self, error: mountd.NotMounted, exports: list[bytes]) -> GpufsError:
        names = ", ".join(path.decode("utf-8", "backslashreplace") for path in exports[:20])
        known = f"it exports: {names}" if names else "it exports nothing to this host"
        kind = AccessDenied if error.status == mountd.ACCES else NotFound
        return kind(f"{self.place}: {error}; {known}")

    def _find_mount_port(self, end: float) -> int:
        host = self.place.host
        hint = "give the port of its MOUNT service by the option nfs_mount_port"
        try:
            connection = connect(
                host, mountd.PORTMAP_PORT, self.identity, min(end - time.monotonic(), SILENCE)
            )
            try:
                (answer,) = exchange(connection, [mountd.get_mount_port()], SILENCE, end)
            finally:
                connection.close()
        except Broken as error:
            raise Broken(f"{error}; if the server has no port mapper, {hint}", silent=error.silent) from error
        port = mountd.port(answer)
        if not port:
            raise RemoteFailed(f"{host} has no MOUNT service for NFS version 3 over TCP; {hint}")
        return port


class Requests:
    """The requests of one attempt, which has to be over at `end`."""

    def __init__(self, session: Session, end: float) -> None:
        self._session = session
        self._end = end

    def send(self, *calls: Call) -> Sequence[memoryview]:
        """The answers, in the order of the calls, which are all on their way together."""
        return self._session.exchange(calls, self._end)

    def root(self) -> Root:
        return self._session.root(self._end)

    def descend(self, path: bytes, *, stale: bool = False) -> bytes:
        """The handle of what has this path now, if all above it are directories.

        `stale`: the handle that was had so far is, be it the root's.
        """
        if not path and stale:
            self._session.forget_root(self.root())
        return self.find(path)[0]

    def find(self, path: bytes) -> tuple[bytes, nfs3.Attributes | None]:
        """Handle and attributes, as far as the server tells these along; the root's it does not."""
        root = self.root()
        try:
            return self._down(root.handle, path)
        except nfs3.Failed as error:
            if error.status not in STALE:
                raise
        self._session.forget_root(root)
        return self._down(self.root().handle, path)

    def attributes(self, handle: bytes) -> nfs3.Attributes:
        (answer,) = self.send(nfs3.getattr(handle))
        return nfs3.attributes(answer)

    def _down(self, handle: bytes, path: bytes) -> tuple[bytes, nfs3.Attributes | None]:
        seen: nfs3.Attributes | None = None
        for name in path.split(b"/") if path else ():
            try:
                (answer,) = self.send(nfs3.lookup(handle, name))
                handle, seen = nfs3.looked_up(answer)
            except nfs3.Failed as error:
                if error.status == nfs3.NOTDIR:  # what is above it is no directory: so it is not there
                    raise nfs3.Failed(nfs3.NOENT) from error
                raise
        return handle, seen
