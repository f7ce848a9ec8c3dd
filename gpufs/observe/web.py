"""Small web servers of a command: GET only, for whoever may reach the address they listen on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, ClassVar

from gpufs.errors import UsageError

PATIENCE = 10.0  # seconds for a request to come


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)


NOT_FOUND = Page(b"not found\n", "text/plain; charset=utf-8", HTTPStatus.NOT_FOUND)
_STRANGE = Page(b"asked for by another name\n", "text/plain; charset=utf-8", HTTPStatus.MISDIRECTED_REQUEST)

# The page at a path, for what is given as Accept.
Answer = Callable[[str, str], Page]


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, or PORT alone for loopback. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text}: an address is HOST:PORT, for example 127.0.0.1:9400")
    return host, int(port)


class WebServer(ThreadingHTTPServer):
    """Listens at once; serve_forever() answers. Port 0 takes one that is free."""

    daemon_threads = True

    def __init__(self, host: str, port: int, answer: Answer) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self.address_family = found[0]
            super().__init__((str(found[4][0]), port), _handler(answer))
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self.loopback = ip_address(str(found[4][0])).is_loopback

    @property
    def address(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}"

    def is_meant(self, host: str) -> bool:
        """On loopback: whether the request was not led here by a name of somebody else's (DNS rebinding)."""
        if not self.loopback:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name.strip("[]").lower() in ("localhost", "127.0.0.1", "::1")


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: WebServer
        server_version = "gpufs"
        sys_version = ""
        protocol_version = "HTTP/1.1"
        timeout = PATIENCE
        _always: ClassVar[dict[str, str]] = {
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
        }

        def do_GET(self) -> None:
            if self.server.is_meant(self.headers.get("Host", "")):
                page = answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            else:
                page = _STRANGE
            self.send_response(page.status)
            headers = {"Content-Type": page.content_type, "Content-Length": str(len(page.body))}
            for name, value in (headers | self._always | page.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page.body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a scrape every few seconds is no news

    return Handler
