"""Web servers that show a directory: nginx (Debian) and Python's own, on free loopback ports."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .process import free_ports, running


@dataclass(frozen=True)
class WebServer:
    """`root` is the directory that is served at `url`, which ends in a slash."""

    url: str
    root: Path


def listening(port: int) -> Callable[[], bool]:
    def ready() -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    return ready


def nginx_binary() -> str | None:
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@contextmanager
def nginx_server() -> Iterator[WebServer]:
    binary = nginx_binary()
    if binary is None:
        raise RuntimeError("no nginx")
    work = Path(tempfile.mkdtemp(prefix="gpufs-nginx-", dir="/var/tmp"))
    work.chmod(0o755)
    (work / "www").mkdir()
    (port,) = free_ports(1)
    temporary = "".join(
        f"{name}_temp_path {work}/{name};" for name in "client_body proxy fastcgi uwsgi scgi".split()
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (work / "nginx.conf").write_text(
        f"daemon off; master_process off; {user} pid {work}/pid; error_log {work}/error.log;"
        f"events {{ worker_connections 256; }}"
        f"http {{ access_log off; {temporary} default_type application/octet-stream; types {{}}"
        "charset utf-8;"
        f"server {{ listen 127.0.0.1:{port}; root {work}/www; autoindex on; }} }}"
    )
    try:
        command = [binary, "-p", str(work), "-c", f"{work}/nginx.conf", "-e", f"{work}/error.log"]
        with running(command, work / "nginx.log", listening(port)):
            yield WebServer(f"http://127.0.0.1:{port}/", work / "www")
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def python_server() -> Iterator[WebServer]:
    work = Path(tempfile.mkdtemp(prefix="gpufs-web-"))
    (work / "www").mkdir()
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "http.server", str(port), "-b", "127.0.0.1", "-d", str(work / "www")]
    try:
        with running(command, work / "web.log", listening(port)):
            yield WebServer(f"http://127.0.0.1:{port}/", work / "www")
    finally:
        shutil.rmtree(work, ignore_errors=True)
