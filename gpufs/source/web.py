"""HTTP requests by libcurl: any URL exactly as given, any status returned, none longer than it may take."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpufs.errors import RemoteFailed
from gpufs.source.retry import Transient

CONNECT_TIMEOUT = 5.0  # seconds
_SILENCE = 10  # seconds without a byte
_RECEIVE = 512 << 10  # bytes libcurl may take from a socket at once
_MOST_WORDS = 1 << 20  # bytes of a body whose length nobody told
_IDLE = 64  # handles kept, each with the connections it has used


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of any status; `headers` has lower-case names, `body` is raw (no decoding)."""

    status: int
    headers: Mapping[str, str]
    body: memoryview
    url: str  # after redirects

    @property
    def modified_ns(self) -> int:
        """The time in Last-Modified, in nanoseconds; 0 for none."""
        text = self.headers.get("last-modified")
        try:
            return int(parsedate_to_datetime(text).timestamp()) * 1_000_000_000 if text else 0
        except ValueError:
            return 0


class Web:
    """Sends requests; thread-safe. Proxies come from the environment, as curl reads it."""

    def __init__(self, ca_bundle: Path | None = None, redirects: int = 0) -> None:
        self._ca_bundle = ca_bundle
        self._redirects = redirects
        self._lock = threading.Lock()
        self._idle: list[_Handle] = []
        self._closed = False

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        budget: float,
        *,
        limit: int | None = None,
        skip: int = 0,
    ) -> Answer:
        """One request, answered within `budget` seconds.

        Of the body of a success at most `limit` bytes are read (the rest is left unread), and of one with
        status 200 the first `skip` are thrown away. Raises Transient, and RemoteFailed for what will not
        pass: a certificate that is not trusted, a wrong URL.
        """
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        if handle is None:
            handle = _Handle(self._ca_bundle, self._redirects)
        answer = handle.send(method, url, headers, budget, limit, skip)  # a failed one is not used again
        with self._lock:
            if len(self._idle) < _IDLE and not self._closed:
                self._idle.append(handle)
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._idle.clear()


class _Handle:
    """One request after the other, of one thread at a time."""

    def __init__(self, ca_bundle: Path | None, redirects: int) -> None:
        import pycurl
        from botocore.httpsession import get_cert_path

        self._pycurl = pycurl
        self._curl: Any = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),  # many connections, not many streams
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.PATH_AS_IS, 1),
            (pycurl.BUFFERSIZE, _RECEIVE),
            (pycurl.LOW_SPEED_LIMIT, 1),
            (pycurl.LOW_SPEED_TIME, _SILENCE),
            (pycurl.FOLLOWLOCATION, 1 if redirects else 0),
            (pycurl.MAXREDIRS, redirects),
            (pycurl.CAINFO, str(ca_bundle or get_cert_path(True))),
            (pycurl.WRITEFUNCTION, self._write),
            (pycurl.HEADERFUNCTION, self._header),
        ):
            self._curl.setopt(option, value)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], budget: float, limit: int | None, skip: int
    ) -> Answer:
        curl, pycurl = self._curl, self._pycurl
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._limit = limit
        self._skip = skip
        self._full = False
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.NOBODY, method == "HEAD")
        if method != "HEAD":
            curl.setopt(pycurl.HTTPGET, 1)
        curl.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in headers.items()])
        curl.setopt(pycurl.TIMEOUT_MS, max(1, int(budget * 1000)))
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(min(budget, CONNECT_TIMEOUT) * 1000)))
        try:
            curl.perform()
        except pycurl.error as error:
            if not self._full:
                raise _failure(error, pycurl, urlsplit(url).netloc.rpartition("@")[2]) from None
        body, self._body = self._body, bytearray()
        return Answer(
            self._status, self._headers, memoryview(body).toreadonly(), curl.getinfo(pycurl.EFFECTIVE_URL)
        )

    def _header(self, line: bytes) -> None:
        if line.startswith(b"HTTP/"):  # the one of a redirect may have come before
            self._status = int(line.split(None, 2)[1])
            self._headers = {}
            return
        name, colon, value = line.partition(b":")
        if colon:
            self._headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")

    def _write(self, piece: bytes) -> int | None:
        limit = self._limit
        if self._status >= 300:
            limit = _MOST_WORDS
        elif self._skip and self._status == 200:
            thrown = min(self._skip, len(piece))
            self._skip -= thrown
            piece = piece[thrown:]
        self._body += piece
        if limit is None or len(self._body) <= limit:
            return None
        del self._body[limit:]
        self._full = True
        return 0  # libcurl ends the transfer


def _failure(error: Any, pycurl: Any, host: str) -> Exception:
    code, text = error.args[0], error.args[1]
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return Transient(f"{host} did not answer in time", timed_out=True)
    if code in (pycurl.E_COULDNT_CONNECT, pycurl.E_COULDNT_RESOLVE_HOST):
        return Transient(f"cannot connect to {host}; check the address and the network ({text})", busy=True)
    if code in (pycurl.E_SSL_CACERT, pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE):
        return RemoteFailed(f"TLS: the certificate of {host} is not trusted; see ca_bundle ({text})")
    if code in (pycurl.E_URL_MALFORMAT, pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_TOO_MANY_REDIRECTS):
        return RemoteFailed(f"{host}: {text}")
    return Transient(f"the connection to {host} broke ({text})")
