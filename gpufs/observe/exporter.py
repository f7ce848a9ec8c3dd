"""Giving the figures to Prometheus: in a file, or to whoever scrapes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

from gpufs.control.paths import Mount
from gpufs.errors import GpufsError, UsageError
from gpufs.observe.ask import figures_of_all
from gpufs.observe.exposition import OPENMETRICS, TEXT, Silent, render
from gpufs.observe.web import NOT_FOUND, Page, WebServer

_INDEX = Page(b"gpufs: see /metrics\n", TEXT)


def text_of(mounts: Sequence[Mount], *, openmetrics: bool) -> tuple[str, bool]:
    """The exposition, and whether all mounts have answered."""
    found = figures_of_all(mounts)
    return render(found, openmetrics=openmetrics), not any(isinstance(each, Silent) for each in found)


def serve(mounts: Callable[[], Sequence[Mount]], host: str, port: int) -> None:
    """Until interrupted. `mounts`: those there are at the moment of a scrape; may raise GpufsError."""

    def answer(path: str, accept: str) -> Page:
        if path == "/":
            return _INDEX
        if path != "/metrics":
            return NOT_FOUND
        openmetrics = "application/openmetrics-text" in accept
        try:
            text, _ = text_of(mounts(), openmetrics=openmetrics)
        except GpufsError as error:  # it is not mounted now
            return Page(f"{error}\n".encode(), TEXT, HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(text.encode(), OPENMETRICS if openmetrics else TEXT)

    with WebServer(host, port, answer) as server:
        print(f"serving {server.address}/metrics", flush=True)
        server.serve_forever()


def replace(path: str, text: str) -> None:
    """Who reads the file meanwhile sees all of the old text or all of the new. Raises UsageError."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".gpufs-metrics-", dir=directory)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.chmod(temporary, 0o644)  # the collector is another user
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
