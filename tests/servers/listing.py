"""A scripted S3 server of one bucket: answers LIST, GET and HEAD out of a Python mapping, and counts.

For what real servers are too slow to be filled with: very many keys, or very large objects.
"""

from __future__ import annotations

import bisect
import hashlib
import re
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote_from_bytes, unquote_to_bytes, urlsplit
from xml.sax.saxutils import escape

from .endpoint import S3Endpoint

BUCKET = "scripted"
_MODIFIED = 1_709_294_400  # 2024-03-01T12:00:00Z


@dataclass(frozen=True, slots=True)
class Pattern:
    """An object of any size without its bytes in memory: every 8 bytes are their own number."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        first, last = offset // 8, -(-(offset + length) // 8)
        words = array("Q", range(first, last)).tobytes()
        return words[offset - first * 8 :][:length]


class ListingServer:
    """The bucket `BUCKET` with `objects` (key -> body); `counts` has the requests by kind so far."""

    def __init__(self, objects: Mapping[bytes, bytes | Pattern]) -> None:
        self._objects = dict(objects)
        self.keys = sorted(self._objects)
        self.counts: Counter[str] = Counter()
        self.sent = 0  # bytes of objects
        self.tag = '"{}"'  # how ETags are sent; with anything but strong ones If-Match is always refused
        self.modified = _MODIFIED  # seconds; when every object was last modified
        self._lock = threading.Lock()
        self._rendered: tuple[bytes, array[int]] | None = None

    def render(self) -> None:
        """Write down in advance what listings say of each key, for when this server must not be the limit."""
        rows, ends = bytearray(), array("Q", [0])
        for key in self.keys:
            rows += self._contents(key).encode()
            ends.append(len(rows))
        self._rendered = bytes(rows), ends

    def count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def size(self, key: bytes) -> int:
        body = self._objects[key]
        return body.size if isinstance(body, Pattern) else len(body)

    def etag(self, key: bytes) -> str:
        body = self._objects[key]
        return f"{body.size:032x}-1" if isinstance(body, Pattern) else hashlib.md5(body).hexdigest()

    def entity_tag(self, key: bytes) -> str:
        """The ETag as it is sent; empty when none is."""
        return self.tag.format(self.etag(key)) if self.tag else ""

    def _time(self) -> str:
        return datetime.fromtimestamp(self.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def put(self, key: bytes, body: bytes, modified: int) -> None:
        """Replace an object."""
        self._objects[key] = body
        self.modified = modified

    def body(self, key: bytes, start: int, end: int) -> bytes:
        body = self._objects[key]
        with self._lock:
            self.sent += end - start
        return body.read(start, end - start) if isinstance(body, Pattern) else body[start:end]

    def listing(self, query: Mapping[str, str]) -> bytes:
        """The XML of one ListObjectsV2 answer; a continuation token is the last thing listed, in hex."""
        prefix = query.get("prefix", "").encode("latin-1")
        delimiter = query.get("delimiter", "").encode("latin-1")
        limit = min(int(query.get("max-keys", "1000")), 1000)
        at = bisect.bisect_left(self.keys, prefix)
        if token := query.get("continuation-token"):
            at = max(at, self._behind(bytes.fromhex(token), delimiter))
        elif after := query.get("start-after"):
            at = max(at, bisect.bisect_right(self.keys, after.encode("latin-1")))
        if self._rendered is not None and not delimiter:
            return self._rendered_listing(at, limit, prefix)
        rows: list[str] = []
        last = b""
        while len(rows) < limit and at < len(self.keys) and self.keys[at].startswith(prefix):
            key = self.keys[at]
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                rows.append(self._contents(key))
                last, at = key, at + 1
            else:
                last = key[: cut + len(delimiter)]
                rows.append(f"<CommonPrefixes><Prefix>{quote_from_bytes(last)}</Prefix></CommonPrefixes>")
                at = self._behind(last, delimiter)
        more = at < len(self.keys) and self.keys[at].startswith(prefix)
        return self._answer(len(rows), last if more else None, "".join(rows).encode())

    def _rendered_listing(self, at: int, limit: int, prefix: bytes) -> bytes:
        assert self._rendered is not None
        rows, ends = self._rendered
        end = max(at, min(at + limit, bisect.bisect_right(self.keys, prefix + b"\xff")))
        more = at < end < len(self.keys) and self.keys[end].startswith(prefix)
        return self._answer(end - at, self.keys[end - 1] if more else None, rows[ends[at] : ends[end]])

    def _answer(self, count: int, last: bytes | None, rows: bytes) -> bytes:
        token = f"<NextContinuationToken>{last.hex()}</NextContinuationToken>" if last is not None else ""
        head = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><EncodingType>url</EncodingType><KeyCount>{count}</KeyCount>"
            f"<IsTruncated>{'true' if last is not None else 'false'}</IsTruncated>{token}"
        )
        return head.encode() + rows + b"</ListBucketResult>"

    def _behind(self, last: bytes, delimiter: bytes) -> int:
        """Where the keys begin that come after a listed key or, if it is one, a common prefix."""
        if delimiter and last.endswith(delimiter):
            return bisect.bisect_left(self.keys, last[:-1] + bytes([last[-1] + 1]))
        return bisect.bisect_right(self.keys, last)

    def _contents(self, key: bytes) -> str:
        return (
            f"<Contents><Key>{quote_from_bytes(key)}</Key><LastModified>{self._time()}</LastModified>"
            f"<ETag>{escape(self.entity_tag(key))}</ETag><Size>{self.size(key)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


@contextmanager
def listing_server(
    objects: Mapping[bytes, bytes | Pattern],
) -> Iterator[tuple[ListingServer, S3Endpoint]]:
    """A server of `objects` in the bucket `BUCKET`, in threads of this process, until the block ends."""
    scripted = ListingServer(objects)
    server = _Server(("127.0.0.1", 0), _handler(scripted))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield scripted, S3Endpoint(url, "test", "testtest", "us-east-1", flat=True)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep idle connections open
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are no error of a test."""


def _handler(scripted: ListingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            pass

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

        def do_GET(self) -> None:
            # self.path has leading slashes collapsed by the standard library: take the raw target
            parts = urlsplit("http://host" + self.requestline.split(" ")[1])
            query = {k: v[0] for k, v in parse_qs(parts.query, encoding="latin-1").items()}
            bucket, _, rest = parts.path[1:].partition("/")
            key = unquote_to_bytes(rest)
            kind = "LIST" if "list-type" in query else self.command
            scripted.count(kind)
            if bucket != BUCKET:
                self.refuse(404, "NoSuchBucket")
            elif kind == "LIST":
                self.send(200, [("Content-Type", "application/xml")], scripted.listing(query))
            elif not key:
                self.send(200, [("x-amz-bucket-region", "us-east-1")], b"")
            elif key not in scripted._objects:
                self.refuse(404, "NoSuchKey")
            else:
                self.send_object(key)

        do_HEAD = do_GET

        def send_object(self, key: bytes) -> None:
            etag, size = scripted.entity_tag(key), scripted.size(key)
            if (wanted_tag := self.headers.get("If-Match")) is not None and (
                not etag.startswith('"') or wanted_tag not in (etag, etag.strip('"'))
            ):
                self.refuse(412, "PreconditionFailed")
                return
            modified = formatdate(scripted.modified, usegmt=True)
            fields = [("Last-Modified", modified), ("Accept-Ranges", "bytes")]
            if etag:
                fields.append(("ETag", etag))
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start, end = 0, size
            if wanted:
                start = int(wanted[1])
                end = min(int(wanted[2]) + 1 if wanted[2] else size, size)
                fields.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
            if self.command == "HEAD":
                self.send(200, [*fields, ("Content-Length", str(size))], b"")
            else:
                self.send(206 if wanted else 200, fields, scripted.body(key, start, end))

        def refuse(self, status: int, code: str) -> None:
            self.send(status, [], f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode())

        def send(self, status: int, fields: Iterable[tuple[str, str]], body: bytes) -> None:
            names = {name for name, _ in fields}
            head = f"HTTP/1.1 {status} Scripted\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields)
            if "Content-Length" not in names:
                head += f"Content-Length: {len(body)}\r\n"
            self.wfile.write(head.encode() + b"\r\n" + (b"" if self.command == "HEAD" else body))

    return Handler
