"""Whole objects, many at once, by one thread: libcurl's multi interface, driven by epoll.

Compared with obstore in as many threads this takes half of the processors' time per small object
(docs/decisions.md). Only what is plain goes this way; S3Source.read() does the rest: connecting,
other credentials, another region, odd keys, and every kind of failure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from gpufs.errors import GpufsError, NotFound, ObjectArchived, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef
from gpufs.source.flat.versions import condition, is_same
from gpufs.source.multi import Multi
from gpufs.source.retry import Transient

from .credentials import Secret
from .keys import plain_text
from .objects import modified_ns
from .signed import CONNECT_TIMEOUT, READ_TIMEOUT
from .translate import Subject, refusal_of_answer
from .way import Signpost, Way

WHOLE_TIMEOUT = 30.0  # seconds for one object; read() has its turn after that, within the same deadline
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_RECEIVE = 512 << 10  # bytes libcurl may take from a socket at once
_LOOK_EVERY = 1.0  # seconds between looks for transfers of which nothing comes
_MOST_REFUSAL = 4096  # bytes of the body of a refusal


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
        self._signpost = Signpost(way)
        self._key = key
        self._metrics = metrics
        self._intact = intact
        self._trouble = trouble
        self._way: Way | None = None  # of those that are idle
        self._idle: list[_Transfer] = []
        self._active: set[_Transfer] = set()
        self._look_at = math.inf  # when to look for those that are silent
        self._busy = {pycurl.E_COULDNT_CONNECT, pycurl.E_OPERATION_TIMEDOUT}
        self._multi = Multi()

    def fileno(self) -> int:
        return self._multi.fileno()

    def timeout(self) -> float | None:
        return self._multi.timeout(self._look_at)

    def start(self, ref: ObjectRef, ticket: Any) -> bool:
        key = self._key(ref.path)
        if plain_text(key) is None or not self._signpost.ready():
            return False
        way = self._signpost.way
        assert way is not None
        if way is not self._way:
            self._way = way
            self._idle.clear()
        transfer = self._idle.pop() if self._idle else _Transfer(self._curl, way)
        transfer.begin(self._signpost.secret, key, ref, ticket)
        self._metrics.remote_requests.add()
        self._multi.add(transfer.curl)
        if not self._active:
            self._look_at = time.monotonic() + _LOOK_EVERY
        self._active.add(transfer)
        return True

    def turn(self) -> list[tuple[Any, memoryview | GpufsError | None]]:
        self._multi.turn()
        done = self._finished() if self._active else []
        if time.monotonic() >= self._look_at:
            done += self._silent()
        return done

    def _finished(self) -> list[tuple[Any, memoryview | GpufsError | None]]:
        return [
            self._fail(curl.transfer, code in self._busy) if code else self._end(curl.transfer)
            for curl, code in self._multi.ended()
        ]

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
        self._multi.remove(transfer.curl)
        self._active.discard(transfer)
        if isinstance(data, memoryview):
            self._metrics.remote_bytes.add(len(data))
            self._metrics.answer_time.observe(transfer.answered - transfer.began)
        elif not isinstance(data, VersionGone):  # that is an answer
            self._metrics.remote_errors.add()  # the repeat is counted by whoever makes it
        ticket = transfer.end()
        if transfer.way is self._way:
            self._idle.append(transfer)
        return ticket, data

    def intact(self, ref: ObjectRef, data: memoryview) -> bool:
        return self._intact(ref, data)


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
