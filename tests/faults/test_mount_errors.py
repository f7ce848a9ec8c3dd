"""A mount that cannot be: one clear line, in bounded time, and nothing left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.faults.conftest import Dataset
from tests.mounts import MountFactory, daemons_of, is_mounted
from tests.servers import S3Endpoint, free_ports

# Nothing of this is another with the fast path: once is enough, for the time it takes.
pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

PATIENCE = (
    40.0  # seconds: 15 for the check of the source, 10 for a last answer, and nine mounts start at once
)


class WebServer(BaseHTTPRequestHandler):
    """Answers everything with a page for people."""

    def do_GET(self) -> None:
        page = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def web_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), WebServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_what_is_wrong_with_the_source_is_said_in_one_line(dataset: Dataset, mount: MountFactory) -> None:
    """Each mistake has its own message, with the name that is wrong in it. All at once, for the time."""
    weed = dataset.server
    bucket = dataset.url.removeprefix("s3://")

    def at(url: str) -> S3Endpoint:
        return replace(weed, url=url)

    with web_server() as web, silent_server() as silent:
        cases = {
            "secret": (
                dataset.url,
                replace(weed, secret_key="wrong"),
                ["credentials", "SignatureDoesNotMatch"],
            ),
            "key id": (
                dataset.url,
                replace(weed, access_key="nobody"),
                ["credentials", "InvalidAccessKeyId"],
            ),
            "bucket": ("s3://no-such-bucket-here", weed, ["no-such-bucket-here"]),
            "prefix": (dataset.url + "/nowhere", weed, ["nowhere", "names nothing"]),
            "object": (f"{dataset.url}/large/0.bin", weed, ["is an object, not a prefix"]),
            "refused": (dataset.url, at(f"http://127.0.0.1:{free_ports(1)[0]}"), ["refused"]),
            "host name": (dataset.url, at("http://no-such-host.invalid:9"), ["no-such-host.invalid"]),
            "web server": (dataset.url, at(web), ["is this an S3 endpoint?"]),
            "silence": (dataset.url, at(silent), ["gave up after"]),
        }
        prepared = {
            name: (mount(url, server, start=False), words) for name, (url, server, words) in cases.items()
        }

        def attempt(name: str) -> tuple[int, str, float]:
            mounted, _ = prepared[name]
            began = time.monotonic()
            done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
            return done.returncode, done.stderr, time.monotonic() - began

        with ThreadPoolExecutor(len(cases)) as pool:
            results = dict(zip(prepared, pool.map(attempt, prepared), strict=True))

    wrong = []
    for name, (mounted, words) in prepared.items():
        code, text, seconds = results[name]
        mounted.may_log_errors = True
        lines = text.strip().split("\n")
        missing = [word for word in words if word not in text]
        if code != 1 or missing or len(lines) != 1 or seconds > PATIENCE or "Traceback" in mounted.log():
            wrong.append(f"{name}: exit {code} in {seconds:.1f} s, without {missing}: {text}")
        if not text.startswith("gpufs: ") or (bucket not in text and name not in ("bucket", "host name")):
            wrong.append(f"{name}: {text}")
        if is_mounted(mounted.path) or daemons_of(mounted.path):
            wrong.append(f"{name}: something is left")
    assert not wrong, "\n".join(wrong)
    assert weed.secret_key not in "".join(text for _, text, _ in results.values())


def test_a_cache_directory_that_cannot_be_used_is_said_in_one_line(
    dataset: Dataset, mount: MountFactory
) -> None:
    """Not a directory, or writable by others: no mount, and nothing is written there."""
    mounted = mount(dataset.url, dataset.server, start=False)
    mounted.may_log_errors = True

    def refused_with(words: str) -> None:
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr

    mounted.cache.write_text("a file")
    refused_with("cache directory")
    mounted.cache.unlink()
    mounted.cache.mkdir()
    mounted.cache.chmod(0o777)
    refused_with("writable by others")
    assert not list(mounted.cache.iterdir())
    assert not is_mounted(mounted.path) and not daemons_of(mounted.path)
