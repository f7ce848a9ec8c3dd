"""Azurite, Microsoft's emulator of Azure Blob Storage (npm), on a free loopback port."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

from gpufs.source.az.account import API_VERSION, Account, date_now, sign

from .process import free_ports, running

# The account every Azurite has: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
NAME = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Azurite:
    url: str  # of the account

    def env(self) -> dict[str, str]:
        return {"AZURE_STORAGE_ACCOUNT": NAME, "AZURE_STORAGE_KEY": KEY}

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> int:
        """A signed request; `path` is below the account, percent-encoded."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        fields |= {"x-ms-version": API_VERSION, "x-ms-date": date_now()}
        url = f"{self.url}/{path}"
        # the length stands in the text that is signed, where a request has a body
        signed = sign(Account(NAME, self.url, KEY), method, url, fields, len(body))
        parts = urlsplit(url)
        connection = HTTPConnection(parts.netloc, timeout=30)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(method, target, body, fields | {"Authorization": signed})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def create(self, container: str) -> None:
        assert self.send("PUT", f"{container}?restype=container") == 201

    def put(self, container: str, objects: Mapping[str, bytes], **headers: str) -> None:
        def one(item: tuple[str, bytes]) -> None:
            path = f"{container}/{quote(item[0], safe='/-_.~')}"
            status = self.send("PUT", path, item[1], x_ms_blob_type="BlockBlob", **headers)
            assert status == 201, (item[0], status)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, objects.items()))

    def delete(self, container: str, name: str) -> None:
        assert self.send("DELETE", f"{container}/{quote(name, safe='/-_.~')}") == 202


def azurite_command() -> list[str] | None:
    """How to run azurite-blob: from the directory .ci/setup installs it in, or from PATH."""
    beside = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    found = str(beside) if beside.exists() else shutil.which("azurite-blob")
    return [found] if found and shutil.which("node") else None


@contextmanager
def azurite_server() -> Iterator[Azurite]:
    command = azurite_command()
    if command is None:
        raise RuntimeError("no azurite-blob: npm install azurite")
    work = Path(tempfile.mkdtemp(prefix="gpufs-azurite-"))
    (port,) = free_ports(1)
    flags = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]

    def ready() -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    try:
        with running([*command, *flags, "--disableTelemetry"], work / "azurite.log", ready, dict(os.environ)):
            yield Azurite(f"http://127.0.0.1:{port}/{NAME}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
