"""moto's S3 server in a process of its own, on a free loopback port: a flat store, any key kept."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .endpoint import S3Endpoint
from .process import free_ports, running


@contextmanager
def moto_server(**env: str) -> Iterator[S3Endpoint]:
    """A moto server; it accepts any credentials unless INITIAL_NO_AUTH_ACTION_COUNT is given in `env`."""
    work = Path(tempfile.mkdtemp(prefix="gpufs-moto-"))
    (port,) = free_ports(1)
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    def ready() -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    try:
        with running(command, work / "moto.log", ready, dict(os.environ, **env)):
            yield S3Endpoint(f"http://127.0.0.1:{port}", "test", "testtest", "us-east-1", flat=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
