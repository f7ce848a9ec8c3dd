"""A scripted S3 server of small objects that is far away: each answer comes after a fixed time.

One thread, an asyncio protocol and prepared answers: it gives several thousand answers a second, so that
what is measured against it is the distance. `python -m tests.servers.distant SECONDS SIZE` reads the keys
from stdin, one a line up to an empty one, prints its address, and ends with its stdin. It counts the GETs
of each key: `Distant.fetched()`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from .endpoint import S3Endpoint
from .listing import BUCKET, ListingServer, Pattern


class _Server(asyncio.Protocol):
    """One connection; requests have no bodies and come one after the other."""

    def __init__(self, objects: ListingServer, seconds: float, got: Counter[str]) -> None:
        self._objects = objects
        self._seconds = seconds
        self._got = got
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, self._received = self._received[:end], self._received[end + 4 :]
            method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
            answer = self._answer(method, target.decode())
            asyncio.get_running_loop().call_later(self._seconds, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _answer(self, method: bytes, target: str) -> bytes:
        path, _, query = target.partition("?")
        if path == "/counts":
            return _http(json.dumps(self._got).encode())
        if "list-type" in query:
            parts = urlsplit("http://host" + target)
            asked = {k: v[0] for k, v in parse_qs(parts.query, encoding="latin-1").items()}
            return _http(self._objects.listing(asked), "Content-Type: application/xml\r\n")
        key = unquote_to_bytes(path.partition("/")[2].partition("/")[2])
        if not key:
            return _http(b"", "x-amz-bucket-region: us-east-1\r\n")
        size = self._objects.size(key)
        fields = f"ETag: {self._objects.entity_tag(key)}\r\nLast-Modified: Fri, 01 Mar 2024 12:00:00 GMT\r\n"
        if method == b"HEAD":
            return f"HTTP/1.1 200 OK\r\n{fields}Content-Length: {size}\r\n\r\n".encode()
        self._got[key.decode()] += 1
        return _http(self._objects.body(key, 0, size), fields)


def _http(body: bytes, fields: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass(frozen=True, slots=True)
class Distant:
    endpoint: S3Endpoint

    def fetched(self) -> Counter[str]:
        """How often each key was asked for."""
        with urllib.request.urlopen(f"{self.endpoint.url}/counts") as answer:
            return Counter(json.load(answer))


@contextmanager
def distant_server(keys: Iterable[str], size: int, seconds: float) -> Iterator[Distant]:
    """A server of objects of `size` bytes in the bucket BUCKET, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.distant", str(seconds), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write("".join(f"{key}\n" for key in keys) + "\n")
        process.stdin.flush()
        url = process.stdout.readline().strip()
        yield Distant(S3Endpoint(url, "test", "testtest", "us-east-1", flat=True))
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


async def _serve(objects: ListingServer, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    got: Counter[str] = Counter()
    server = await loop.create_server(lambda: _Server(objects, seconds, got), "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    over = asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait, daemon=True).start()
    await over.wait()


def main() -> None:
    seconds, size = float(sys.argv[1]), int(sys.argv[2])
    keys = []
    while key := sys.stdin.readline().rstrip("\n"):
        keys.append(key.encode())
    asyncio.run(_serve(ListingServer(dict.fromkeys(keys, Pattern(size))), seconds))


__all__ = ["BUCKET", "Distant", "distant_server"]

if __name__ == "__main__":
    main()
