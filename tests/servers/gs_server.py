"""A server of Google Cloud Storage's JSON API, as far as gpufs uses it: pages, generations, tokens.

The emulators there are give every key in one page and any generation for every other. This one keeps to
https://cloud.google.com/storage/docs/json_api/v1 in those respects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "a-token-of-the-test"


@dataclass
class GsServer:
    """`refuse` makes it want TOKEN; `tokens` counts how often that was issued."""

    url: str = ""
    buckets: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    refuse: bool = False
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, bucket: str, objects: Mapping[str, bytes], **extra: str) -> None:
        with self.lock:
            for name, body in objects.items():
                self.buckets[bucket][name] = {
                    "name": name,
                    "size": str(len(body)),
                    "updated": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "generation": str(time.time_ns() // 1000),
                    "md5Hash": base64.b64encode(hashlib.md5(body).digest()).decode(),
                    "body": body,
                    **extra,
                }
                time.sleep(0.000002)  # generations differ

    def delete(self, bucket: str, name: str) -> None:
        with self.lock:
            del self.buckets[bucket][name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gs: GsServer

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.gs.tokens += 1
        self._json(200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})

    def do_GET(self) -> None:
        if self.gs.refuse and self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self._error(401, "Anonymous caller does not have storage.objects.list access")
        parts = urlsplit(self.path)
        found = re.fullmatch(r"/storage/v1/b/([^/]+)/o(?:/([^/]+))?", parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        bucket = self.gs.buckets.get(unquote(found[1])) if found else None
        if found is None or bucket is None:
            return self._error(404, "The specified bucket does not exist.")
        with self.gs.lock:
            if found[2] is None:
                return self._json(200, _listing(bucket, query))
            item = bucket.get(unquote(found[2]))
        if item is None or query.get("generation", item["generation"]) != item["generation"]:
            return self._error(404, f"No such object: {unquote(found[2])}")
        if query.get("alt") == "media":
            return self._media(item)
        return self._json(200, _public(item))

    def _media(self, item: dict[str, Any]) -> None:
        body = item["body"]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, len(body) - 1)
        part = body[first : last + 1]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(body)}")
        self.send_header("X-Goog-Generation", item["generation"])
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def _json(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"code": status, "message": message}})


def _public(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "body"}


def _listing(bucket: Mapping[str, dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    after, most = query.get("pageToken", "").encode(), int(query.get("maxResults", 1000))
    items: list[dict[str, Any]] = []
    prefixes: list[str] = []
    last = b""
    for name in sorted(bucket, key=str.encode):
        if not name.startswith(prefix):
            continue
        head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        shown = prefix + head + cut if cut else name
        if shown.encode() <= after or (prefixes and prefixes[-1] == shown and cut):
            continue
        if len(items) + len(prefixes) == most:
            return {"items": items, "prefixes": prefixes, "nextPageToken": last.decode()}
        if cut:
            prefixes.append(shown)
        else:
            items.append(_public(bucket[name]))
        last = shown.encode()
    return {"items": items, "prefixes": prefixes}


@contextmanager
def gs_server() -> Iterator[GsServer]:
    gs = GsServer()
    handler = type("Handler", (_Handler,), {"gs": gs})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    gs.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield gs
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
