"""Whole objects, many at once, by one thread: libcurl's multi interface, driven by epoll.

Compared with obstore in as many threads this takes half of the processors' time per small object
(docs/decisions.md). Only what is plain goes this way; S3Source.read() does the rest: connecting,
other credentials, another region, odd keys, and every kind of failure.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpufs.errors import GpufsError, NotFound, ObjectArchived, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef
from gpufs.source.flat.versions import condition, is_same
from gpufs.source.retry import Transient

from .credentials import Credentials, Secret
from .keys import plain_text
from .location import Location
from .objects import modified_ns
from .signed import CONNECT_TIMEOUT, READ_TIMEOUT
from .translate import Subject, refusal_of_answer

WHOLE_TIMEOUT = 30.0  # seconds for one object; read() has its turn after that, within the same deadline
_SECRET_HOLDS = 60.0  # seconds until the credentials are asked for again
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_RECEIVE = 512 << 10  # bytes libcurl may take from a socket at once
_CONNECTIONS = 256  # kept
_LOOK_EVERY = 1.0  # seconds between looks for transfers of which nothing comes
_MOST_REFUSAL = 4096  # bytes of the body of a refusal


@dataclass(frozen=True, slots=True)
class Way:
    """To whom requests go now, and signed by whom (None: not signed)."""

    location: Location
    credentials: Credentials | None
    requester_pays: bool


class S3Downloads:
    """Implements Downloads. Lives in one thread, intact() apart."""

    def __init__(
        self,
        way: Callable[[], Way | None],
        key: Callable[[bytes], bytes],
        intact: Callable[[ObjectRef, memoryview], bool],
        trouble: Callable[[float], None],
        metrics: Metrics,
    ) -> None:
        """`way` gives None as long as nobody has connected by S3Source.read(). `trouble`: see Load."""
        import pycurl

        self._curl = pycurl
        self._find_way = way
        self._key = key
        self._metrics = metrics
        self._intact = intact
        self._trouble = trouble
        self._way: Way | None = None
        self._secret: Secret | None = None
        self._secret_until = 0.0
        self._asking = threading.Lock()  # held while a thread asks for the credentials
        self._poll = select.epoll()
        self._due: float | None = 0.0
        self._watched: set[int] = set()
        self._idle: list[_Transfer] = []
        self._active: set[_Transfer] = set()
        self._look_at = math.inf  # when to look for those that are silent
        self._busy = {pycurl.E_COULDNT_CONNECT, pycurl.E_OPERATION_TIMEDOUT}
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, _CONNECTIONS)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def fileno(self) -> int:
        return self._poll.fileno()

    def timeout(self) -> float | None:
        at = min(self._look_at, math.inf if self._due is None else self._due)
        return None if at == math.inf else max(0.0, at - time.monotonic())

    def start(self, ref: ObjectRef, ticket: Any) -> bool:
        key = self._key(ref.path)
        if plain_text(key) is None or not self._on_the_way():
            return False
        assert self._way is not None
        transfer = self._idle.pop() if self._idle else _Transfer(self._curl, self._way)
        transfer.begin(self._secret, key, ref, ticket)
        self._metrics.remote_requests.add()
        self._multi.add_handle(transfer.curl)
        if not self._active:
            self._look_at = time.monotonic() + _LOOK_EVERY
        self._active.add(transfer)
        return True

    def turn(self) -> list[tuple[Any, memoryview | GpufsError | None]]:
        pycurl = self._curl
        for fd, events in self._poll.poll(0):
            what = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0
            what |= pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
            self._multi.socket_action(fd, what)
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        done = self._finished() if self._active else []
        if time.monotonic() >= self._look_at:
            done += self._silent()
        return done

    def _finished(self) -> list[tuple[Any, memoryview | GpufsError | None]]:
        done: list[tuple[Any, memoryview | GpufsError | None]] = []
        more = True
        while more:
            more, succeeded, failed = self._multi.info_read()
            done += [self._end(curl.transfer) for curl in succeeded]
            done += [self._fail(curl.transfer, code in self._busy) for curl, code, _ in failed]
        return done

    def _end(self, transfer: _Transfer) -> tuple[Any, memoryview | GpufsError | None]:
        data = transfer.result()
        if isinstance(data, Transient):
            return self._fail(transfer, data.busy)
        return self._take(transfer, data)

    def _fail(self, transfer: _Transfer, busy: bool) -> tuple[Any, memoryview | GpufsError | None]:
        if busy:
            self._trouble(transfer.began)
        return self._take(transfer, None)

    def _silent(self) -> list[tuple[Any, memoryview | GpufsError | None]]:
        """Give up those of which nothing has come for READ_TIMEOUT; libcurl's own limit is of an average."""
        now = time.monotonic()
        silent = [transfer for transfer in self._active if now - transfer.heard > READ_TIMEOUT]
        done = [self._fail(transfer, True) for transfer in silent]
        self._look_at = now + _LOOK_EVERY if self._active else math.inf
        return done

    def _take(
        self, transfer: _Transfer, data: memoryview | GpufsError | None
    ) -> tuple[Any, memoryview | GpufsError | None]:
        self._multi.remove_handle(transfer.curl)
        self._active.discard(transfer)
        if isinstance(data, memoryview):
            self._metrics.remote_bytes.add(len(data))
            self._metrics.first_byte_time.observe(transfer.answered - transfer.began)
        elif not isinstance(data, VersionGone):  # that is an answer
            self._metrics.remote_errors.add()  # the repeat is counted by whoever makes it
        ticket = transfer.end()
        if transfer.way is self._way:
            self._idle.append(transfer)
        return ticket, data

    def intact(self, ref: ObjectRef, data: memoryview) -> bool:
        return self._intact(ref, data)

    # -- what libcurl asks of its driver

    def _watch(self, what: int, fd: int, multi: object, data: object) -> None:
        if what == self._curl.POLL_REMOVE:
            self._watched.discard(fd)
            self._poll.unregister(fd)
            return
        events = select.EPOLLIN if what & self._curl.POLL_IN else 0
        events |= select.EPOLLOUT if what & self._curl.POLL_OUT else 0
        if fd in self._watched:
            self._poll.modify(fd, events)
        else:
            self._watched.add(fd)
            self._poll.register(fd, events)

    def _set_timer(self, milliseconds: int) -> None:
        self._due = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    # -- place and credentials

    def _on_the_way(self) -> bool:
        """Have the place and the credentials ready; False when they are not yet."""
        way = self._find_way()
        if way is None:
            return False
        if way is not self._way:
            self._way = way
            self._secret_until = 0.0
            self._secret = None
            self._idle.clear()
        if way.credentials is None:
            return True
        if time.monotonic() > self._secret_until and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, args=[way], name="gpufs credentials", daemon=True).start()
        return self._secret is not None

    def _ask(self, way: Way) -> None:
        """Thread: the credentials may have to be renewed, which takes requests of its own."""
        try:
            assert way.credentials is not None
            secret = way.credentials.current()
            if way is self._way:
                self._secret = secret
                self._secret_until = time.monotonic() + _SECRET_HOLDS
        except Exception:
            self._secret = None  # read() will say why
        finally:
            self._asking.release()


class _Transfer:
    """One GET after the other, on whatever connection is free."""

    def __init__(self, pycurl: Any, way: Way) -> None:
        self.way = way
        self.curl = curl = pycurl.Curl()
        curl.transfer = self
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)  # many connections, not many streams
        curl.setopt(pycurl.PROXY, way.location.proxy or "")
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, int(CONNECT_TIMEOUT * 1000))
        curl.setopt(pycurl.TIMEOUT_MS, int(WHOLE_TIMEOUT * 1000))
        curl.setopt(pycurl.BUFFERSIZE, _RECEIVE)
        curl.setopt(pycurl.WRITEFUNCTION, self._write)
        curl.setopt(pycurl.HEADERFUNCTION, self._header)
        if way.location.endpoint.startswith("https:"):
            from botocore.httpsession import get_cert_path

            curl.setopt(pycurl.CAINFO, way.location.ca_bundle or get_cert_path(True))
        if way.credentials is not None:
            curl.setopt(pycurl.AWS_SIGV4, f"aws:amz:{way.location.region}:s3")
        self._pycurl = pycurl
        self._secret: Secret | None = None
        self._headers: list[str] = []
        self._ticket: Any = None
        self._ref = ObjectRef(b"", "", 0)
        self._body = memoryview(b"")
        self._have = 0
        self.began = 0.0
        self.answered = 0.0  # when the first of its answer came
        self.heard = 0.0  # when the last of it came
        self._status = 0
        self._answer: dict[str, str] = {}
        self._refusal = b""

    def begin(self, secret: Secret | None, key: bytes, ref: ObjectRef, ticket: Any) -> None:
        if secret is not self._secret or not self._headers:
            self._sign_with(secret)
        self._ticket, self._ref = ticket, ref
        self._body = memoryview(bytearray(ref.size))
        self._have = 0
        self.began = self.heard = time.monotonic()
        self._answer = {}
        self._refusal = b""
        self._subject = Subject(self.way.location.bucket, key)
        wanted = condition(ref.version)
        self.curl.setopt(self._pycurl.URL, self.way.location.url(key))
        self.curl.setopt(
            self._pycurl.HTTPHEADER, [*self._headers, f"If-Match: {wanted}"] if wanted else self._headers
        )

    def result(self) -> memoryview | GpufsError | Transient | None:
        """All bytes of the version that was wanted; or why nobody can have them, or not now; or None."""
        if self._status != 200:
            error = refusal_of_answer(self._subject, self._status, self._answer, self._refusal)
            if isinstance(error, NotFound):
                return VersionGone(f"{self._subject} was deleted")
            return error if isinstance(error, (ObjectArchived, VersionGone, Transient)) else None
        if self._have != self._ref.size:
            return None
        version, etag = self._ref.version, self._answer.get("etag", "")
        mtime_ns = 0 if etag and condition(version) else modified_ns(self._answer)  # it costs 15 us
        return self._body.toreadonly() if is_same(version, etag, mtime_ns, self._ref.size) else None

    def end(self) -> Any:
        """Let go of everything; the ticket it was begun with."""
        ticket, self._ticket = self._ticket, None
        self._body = memoryview(b"")
        return ticket

    def _sign_with(self, secret: Secret | None) -> None:
        self._secret = secret
        self._headers = [f"x-amz-content-sha256: {_EMPTY_SHA256}"] if secret is not None else []
        if self.way.requester_pays:
            self._headers.append("x-amz-request-payer: requester")
        if secret is not None:
            self.curl.setopt(self._pycurl.USERNAME, secret.access_key)
            self.curl.setopt(self._pycurl.PASSWORD, secret.secret_key)
            if secret.token is not None:
                self._headers.append(f"x-amz-security-token: {secret.token}")

    def _write(self, piece: bytes) -> int | None:
        self.heard = time.monotonic()
        if self._status != 200:
            self._refusal = (self._refusal + piece)[:_MOST_REFUSAL]
            return None
        end = self._have + len(piece)
        if end > self._ref.size:
            return 0  # libcurl ends the transfer
        self._body[self._have : end] = piece
        self._have = end
        return None

    def _header(self, line: bytes) -> None:
        if line.startswith(b"HTTP/"):
            self.answered = time.monotonic()
            self._status = int(line.split(None, 2)[1])
        elif line[:1] in b"eElL":  # few lines are of interest
            name, _, value = line.partition(b":")
            lowered = name.lower()
            if lowered in (b"etag", b"last-modified"):
                self._answer[lowered.decode()] = value.strip().decode("latin-1")
