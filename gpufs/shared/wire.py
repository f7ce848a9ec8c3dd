"""Signed GETs and PUTs to one bucket, many at once, by one thread that waits for none of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from gpufs.source.multi import Multi
from gpufs.source.s3 import S3Source
from gpufs.source.s3.way import Signpost, Way

_LOOK_EVERY = 0.05  # seconds between looks for those of which nothing comes
_CONNECT_AGAIN = 5.0  # seconds
_RECEIVE = 512 << 10  # bytes libcurl may take from a socket at once
_UNSIGNED = "x-amz-content-sha256: UNSIGNED-PAYLOAD"  # an entry has a checksum of its own
_WORDS = 4096  # bytes of a refusal that are kept


class Exchange:
    """One request and its answer: `status` is 0 when there is none, and `why` says what went wrong."""

    __slots__ = (
        "began",
        "body",
        "date",
        "done",
        "error",
        "handle",
        "heard",
        "limit",
        "method",
        "name",
        "new",
        "patience",
        "status",
        "upload",
        "whole",
        "written",
    )

    def __init__(
        self,
        method: str,
        name: str,
        done: Callable[[Exchange], object],
        patience: float,
        *,
        whole: float,
        limit: int = _WORDS,
        upload: bytes = b"",
        new: bool = False,
    ) -> None:
        """`done` is told of its end. `patience`: seconds without a byte of the answer, `whole`: with all of
        it. `limit`: bytes that the body of a success should have at most; one more of a longer one is
        read. `new`: only if there is no such object."""
        self.method = method
        self.name = name
        self.done = done
        self.patience = patience
        self.whole = whole
        self.limit = limit
        self.upload = upload
        self.new = new
        self.began = self.heard = 0.0
        self.status = 0
        self.body = bytearray()
        self.date = self.written = b""  # what the server says it is, and when the object was written
        self.error = ""
        self.handle: _Handle | None = None

    def late(self, now: float) -> bool:
        return now - self.heard > self.patience or now - self.began > self.whole

    @property
    def age(self) -> float:
        """Seconds since the object was written, by the server's clock; 0 when it does not tell."""
        try:
            return _seconds(self.date) - _seconds(self.written)
        except (TypeError, ValueError):
            return 0.0

    @property
    def why(self) -> str:
        """For people."""
        if not self.status:
            return self.error
        code = bytes(self.body).partition(b"<Code>")[2].partition(b"</Code>")[0].decode(errors="replace")
        return f"the server answered {self.status} {code}".rstrip()


class Wire:
    """Lives in one thread."""

    def __init__(self, source: S3Source) -> None:
        self._source = source
        self._signpost = Signpost(lambda: source.way)
        self._multi = Multi()
        self._way: Way | None = None  # of those that are idle
        self._idle: list[_Handle] = []
        self._active: set[Exchange] = set()
        self._look_at = math.inf
        self._connect_at = 0.0
        self.trouble = ""  # why there is no connection

    def fileno(self) -> int:
        return self._multi.fileno()

    def timeout(self) -> float | None:
        return self._multi.timeout(self._look_at)

    def ready(self) -> bool:
        """Whether requests may be sent: the place and the credentials are known. Never waits."""
        if self._signpost.ready():
            return True
        now = time.monotonic()
        if self._source.way is None and now >= self._connect_at:
            self._connect_at = now + _CONNECT_AGAIN
            threading.Thread(target=self._connect, name="gpufs shared cache", daemon=True).start()
        return False

    def send(self, exchange: Exchange) -> None:
        """Only when ready()."""
        way = self._signpost.way
        assert way is not None
        if way is not self._way:
            self._way = way
            self._idle.clear()
        handle = self._idle.pop() if self._idle else _Handle(way)
        exchange.handle = handle
        exchange.began = exchange.heard = time.monotonic()
        handle.begin(exchange, self._signpost, self._source.key(exchange.name.encode()))
        self._multi.add(handle.curl)
        self._active.add(exchange)
        if self._look_at == math.inf:
            self._look_at = exchange.began + _LOOK_EVERY

    def turn(self) -> None:
        """Do what can be done without waiting, and tell of what has ended."""
        self._multi.turn()
        ended = [(curl.handle.exchange, code) for curl, code in self._multi.ended()]
        for exchange, code in ended:
            if code and len(exchange.body) <= exchange.limit:
                exchange.status, exchange.error = 0, exchange.handle.curl.errstr() or f"libcurl: {code}"
            self._end(exchange)
        now = time.monotonic()
        if now >= self._look_at:
            for exchange in [each for each in self._active if each.late(now)]:
                exchange.status, exchange.error = 0, "no answer in time"
                self._end(exchange)
            self._look_at = now + _LOOK_EVERY if self._active else math.inf

    def _end(self, exchange: Exchange) -> None:
        handle = exchange.handle
        assert handle is not None
        self._multi.remove(handle.curl)
        self._active.discard(exchange)
        exchange.handle = handle.exchange = None
        if handle.way is self._way and len(exchange.upload) <= _WORDS:  # it holds the last one until the next
            self._idle.append(handle)
        exchange.done(exchange)

    def _connect(self) -> None:
        """Thread: it takes requests of its own."""
        try:
            self._source.connect()
        except Exception as error:
            self.trouble = str(error)


class _Handle:
    """One exchange after the other, on whatever connection is free."""

    def __init__(self, way: Way) -> None:
        import pycurl
        from botocore.httpsession import get_cert_path

        self.way = way
        self.exchange: Exchange | None = None
        self._pycurl = pycurl
        self.curl: Any = pycurl.Curl()
        self.curl.handle = self
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.PROXY, way.location.proxy or ""),
            (pycurl.BUFFERSIZE, _RECEIVE),
            (pycurl.UPLOAD_BUFFERSIZE, _RECEIVE),
            (pycurl.WRITEFUNCTION, self._write),
            (pycurl.HEADERFUNCTION, self._header),
        ):
            self.curl.setopt(option, value)
        if way.location.endpoint.startswith("https:"):
            self.curl.setopt(pycurl.CAINFO, way.location.ca_bundle or get_cert_path(True))
        if way.credentials is not None:
            self.curl.setopt(pycurl.AWS_SIGV4, f"aws:amz:{way.location.region}:s3")

    def begin(self, exchange: Exchange, signpost: Signpost, key: bytes) -> None:
        curl, pycurl = self.curl, self._pycurl
        self.exchange = exchange
        curl.setopt(pycurl.URL, self.way.location.url(key))
        headers = [_UNSIGNED, "Expect:"]
        if (secret := signpost.secret) is not None:
            curl.setopt(pycurl.USERNAME, secret.access_key)
            curl.setopt(pycurl.PASSWORD, secret.secret_key)
            if secret.token is not None:
                headers.append(f"x-amz-security-token: {secret.token}")
        if exchange.method == "PUT":
            curl.setopt(pycurl.POSTFIELDS, exchange.upload)
            curl.setopt(pycurl.CUSTOMREQUEST, "PUT")
            headers.append("Content-Type: application/octet-stream")
            if exchange.new:
                headers.append("If-None-Match: *")
        else:
            curl.unsetopt(pycurl.CUSTOMREQUEST)
            curl.setopt(pycurl.HTTPGET, 1)
        curl.setopt(pycurl.HTTPHEADER, headers)

    def _write(self, piece: bytes) -> int | None:
        exchange = self.exchange
        assert exchange is not None
        exchange.heard = time.monotonic()
        if exchange.status != 200:
            exchange.body += piece[: _WORDS - len(exchange.body)]
            return None
        exchange.body += piece[: exchange.limit + 1 - len(exchange.body)]
        return 0 if len(exchange.body) > exchange.limit else None  # 0: libcurl ends the transfer

    def _header(self, line: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.heard = time.monotonic()
        if line.startswith(b"HTTP/"):
            exchange.status = int(line.split(None, 2)[1])
        elif line[:1] in b"dDlL":  # few lines are of interest
            name, _, value = line.partition(b":")
            if name.lower() == b"date":
                exchange.date = value
            elif name.lower() == b"last-modified":
                exchange.written = value


def _seconds(date: bytes) -> float:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(date.decode("latin-1").strip()).timestamp()
