"""A loopback HTTP proxy in front of a server that counts requests and breaks them on demand."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from .process import free_ports

Kind = Literal["LIST", "GET", "HEAD", "PUT", "OTHER"]
Action = Literal["delay", "stall", "dribble", "close", "flip", "status", "reset"]


@dataclass(slots=True)
class Fault:
    """What to do to the next `times` (None: all) requests of `kind` whose target contains `target`.

    delay: wait `seconds`, then answer properly. stall: send `after` body bytes, then nothing more.
    dribble: send the body one byte every `seconds`. close: send `after` body bytes, then close.
    flip: invert the body byte at `after`. status: answer `status` with an S3 error `code`, without
    asking the server; its message repeats what the client sent (`echo`), as careless servers do.
    reset: reset the connection instead of an answer.
    """

    action: Action
    kind: Kind | None = None
    target: str = ""
    times: int | None = None
    seconds: float = 0.0
    after: int = 0
    status: int = 503
    code: str = "SlowDown"
    headers: dict[str, str] = field(default_factory=dict)
    echo: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    kind: Kind
    method: str
    target: str
    headers: dict[str, str]


class FaultProxy:
    """The proxy; `url` is what clients are given. All methods may be called from any thread.

    `certificate` is a PEM file with key and certificate: then it speaks TLS to its clients.
    """

    def __init__(self, upstream: str, certificate: Path | None = None) -> None:
        self._certificate = certificate
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._seen: list[Seen] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._sockets: set[socket.socket] = set()
        self.most: int | None = None  # GETs at once; what is more is refused with 503
        self.takes = 0.0  # seconds for each GET
        self._gets = 0
        self.released = threading.Event()  # set: stalled and delayed requests end at once
        (self._port,) = free_ports(1)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._port}"
        self.listen()

    # -- what tests do

    def add(self, fault: Fault) -> None:
        """Arm a fault; the first armed one that fits a request is used."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Disarm all faults and let go of every request held by one."""
        with self._lock:
            self._faults.clear()
            self.released.set()
            self.released = threading.Event()

    def seen(self, kind: Kind | None = None) -> list[Seen]:
        """The requests since the last forget(), in order of arrival."""
        with self._lock:
            return [s for s in self._seen if kind is None or s.kind == kind]

    def counts(self) -> Counter[str]:
        """How many requests of each kind came since the last forget()."""
        return Counter(s.kind for s in self.seen())

    def forget(self) -> None:
        with self._lock:
            self._seen.clear()

    def refuse(self) -> None:
        """Stop listening and drop every connection: clients get "connection refused"."""
        if self._server is None:
            return
        self.clear()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            sockets = list(self._sockets)
        for s in sockets:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._server = None

    def listen(self) -> None:
        """Listen (again), on the same port."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self._port), _handler(self))
            if self._certificate is not None:
                tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                tls.load_cert_chain(self._certificate)
                # without: a client that rejects the certificate would end the accepting thread's loop
                self._server.socket = tls.wrap_socket(
                    self._server.socket, server_side=True, do_handshake_on_connect=False
                )
            self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
            self._thread.start()

    # -- what the handler asks

    def note(self, seen: Seen) -> Fault | None:
        """Record a request and take the fault that is due for it."""
        with self._lock:
            self._seen.append(seen)
            for fault in self._faults:
                if fault.kind in (None, seen.kind) and fault.target in seen.target:
                    if fault.times is not None:
                        fault.times -= 1
                        if fault.times <= 0:
                            self._faults.remove(fault)
                    return fault
        return None

    @contextmanager
    def getting(self) -> Iterator[bool]:
        """A GET is served inside, unless this gives False."""
        with self._lock:
            self._gets += 1
            taken = self.most is None or self._gets <= self.most
        try:
            if taken and self.takes:
                self.released.wait(self.takes)
            yield taken
        finally:
            with self._lock:
                self._gets -= 1

    def hold(self, s: socket.socket) -> None:
        with self._lock:
            self._sockets.add(s)

    def let_go(self, s: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(s)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._upstream, timeout=60)


@contextmanager
def fault_proxy(upstream: str, certificate: Path | None = None) -> Iterator[FaultProxy]:
    """A FaultProxy in front of the server at `upstream` until the block ends."""
    proxy = FaultProxy(upstream, certificate)
    try:
        yield proxy
    finally:
        proxy.refuse()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are what these tests are about: say nothing."""


def _kind(method: str, target: str) -> Kind:
    if method == "GET":
        return "LIST" if "list-type=2" in target else "GET"
    return method if method in ("HEAD", "PUT") else "OTHER"  # type: ignore[return-value]


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        upstream: http.client.HTTPConnection | None = None

        def setup(self) -> None:
            super().setup()
            proxy.hold(self.connection)

        def finish(self) -> None:
            proxy.let_go(self.connection)
            if self.upstream is not None:
                self.upstream.close()
            with suppress(OSError):
                super().finish()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self) -> None:
            # self.path has leading slashes collapsed by the standard library: take the raw target
            target = self.requestline.split(" ")[1]
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k.lower(): v for k, v in self.headers.items()}
            fault = proxy.note(Seen(_kind(self.command, target), self.command, target, headers))
            if fault is not None and fault.action == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                # dup: socketserver's own shutdown() would send FIN first
                self.connection.close()
                return
            if fault is not None and fault.action == "status":
                self.refuse_with(fault)
                return
            if fault is not None and fault.action == "delay":
                proxy.released.wait(fault.seconds)
            if _kind(self.command, target) != "GET":
                self.relay(self.ask(target, body), fault)
                return
            with proxy.getting() as taken:
                if taken:
                    self.relay(self.ask(target, body), fault)
                else:
                    self.refuse_with(Fault("status"))

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def ask(self, target: str, body: bytes) -> http.client.HTTPResponse:
            for fresh in (self.upstream is None, True):  # the kept connection may have been closed
                if fresh:
                    if self.upstream is not None:
                        self.upstream.close()
                    self.upstream = proxy.connect()
                up = self.upstream
                assert up is not None
                try:
                    up.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() not in ("connection", "expect"):
                            up.putheader(name, value)
                    up.endheaders(body or None)
                    return up.getresponse()
                except (OSError, http.client.HTTPException):
                    if fresh:
                        raise
            raise AssertionError("unreachable")

        def refuse_with(self, fault: Fault) -> None:
            said = f"{self.requestline} {dict(self.headers)}" if fault.echo else "injected"
            xml = (
                f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{fault.code}</Code>'
                f"<Message>{escape(said)}</Message><RequestId>FAULT1</RequestId></Error>"
            ).encode()
            head = f"HTTP/1.1 {fault.status} Injected\r\nContent-Type: application/xml\r\n"
            head += "".join(f"{k}: {v}\r\n" for k, v in fault.headers.items())
            head += f"x-amz-request-id: FAULT1\r\nContent-Length: {len(xml)}\r\n\r\n"
            self.wfile.write(head.encode() + (b"" if self.command == "HEAD" else xml))

        def relay(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
            fields = [
                (k, v)
                for k, v in response.getheaders()
                if k.lower() not in ("transfer-encoding", "connection", "keep-alive")
            ]
            bodyless = self.command == "HEAD" or response.status in (204, 304)
            body = b"" if bodyless else response.read()
            if bodyless:
                response.read()
            elif response.getheader("Content-Length") is None:
                fields.append(("Content-Length", str(len(body))))
            head = f"HTTP/1.1 {response.status} {response.reason}\r\n"
            head += "".join(f"{k}: {v}\r\n" for k, v in fields) + "\r\n"
            self.wfile.write(head.encode("latin-1"))
            action = fault.action if fault is not None else None
            if fault is None or action == "delay":
                self.wfile.write(body)
            elif action == "flip":
                broken = bytearray(body)
                if broken:
                    broken[fault.after % len(broken)] ^= 0xFF
                self.wfile.write(broken)
            elif action in ("stall", "close"):
                self.wfile.write(body[: fault.after])
                self.wfile.flush()
                if action == "stall":
                    proxy.released.wait()
                self.close_connection = True
            elif action == "dribble":
                released = proxy.released
                for i in range(len(body)):
                    self.wfile.write(body[i : i + 1])
                    if released.wait(fault.seconds):
                        self.close_connection = True
                        return

    return Handler
