"""Sources over HTTP and through fsspec: who is let in, what is said when something is wrong, and faults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufs.errors import AccessDenied, DeadlineExceeded, NotFound, RemoteFailed, UsageError, VersionGone
from gpufs.metrics import Metrics
from gpufs.source import ObjectRef, Source, open_source
from gpufs.source.s3.settings import S3Settings
from tests.conformance.tree import by_lists, by_walk, expected, listed, ref
from tests.servers import Azurite, Fault, FileServer, GsServer, WebServer, fault_proxy, ftp_server

Open = Callable[..., Source]
FILES = {b"a": b"1", b"d/b": b"22" * 50_000, b"d/c,d": b"333"}


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[Source] = []

    def make(url: str, metrics: Metrics | None = None, **settings: object) -> Source:
        made.append(open_source(url, S3Settings(**settings), metrics or Metrics()))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and checks may take 2 seconds."""
    monkeypatch.setitem(retry_defaults(), "deadline", 2.0)
    for module in ("flat.source.CHECK", "http.index._CHECK", "http.manifest._CHECK", "fsspec.source._CHECK"):
        monkeypatch.setattr(f"gpufs.source.{module}_DEADLINE", 2.0)


def retry_defaults() -> dict[str, object]:
    from gpufs.source.retry import Retry

    defaults: dict[str, object] = Retry.__init__.__kwdefaults__  # type: ignore[assignment]
    return defaults


def fill(root: Path, files: dict[bytes, bytes]) -> None:
    for path, content in files.items():
        target = os.path.join(os.fsencode(root), path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)


# -- gs


def test_gs_tokens_come_from_a_key_file(
    gs: GsServer, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "me@x.iam", "token_uri": gs.url + "/token"}
    account |= {"private_key": key.decode(), "private_key_id": "1", "project_id": "p"}
    (tmp_path / "key.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    gs.buckets["private"] = {}
    gs.put("private", {"x": b"secret"})
    monkeypatch.setattr(gs, "refuse", True)
    source = opened("gs://private", endpoint_url=gs.url)
    source.check()
    assert source.read(ref(source, b"x"), 0, 6) == b"secret"
    assert gs.tokens == 1
    with pytest.raises(AccessDenied, match="credentials"):
        opened("gs://private", endpoint_url=gs.url, anonymous=True).check()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(AccessDenied, match="GOOGLE_APPLICATION_CREDENTIALS"):
        opened("gs://private", endpoint_url=gs.url).check()


def test_a_bucket_that_is_not_there(gs: GsServer, opened: Open) -> None:
    with pytest.raises(NotFound, match="no such bucket: nothing-here"):
        opened("gs://nothing-here", endpoint_url=gs.url, anonymous=True).check()


def test_wrong_bytes_are_not_taken_for_an_object(gs: GsServer, opened: Open, short: None) -> None:
    gs.buckets["sums"] = {}
    gs.put("sums", {"x": b"right"})
    gs.buckets["sums"]["x"]["body"] = b"wrong"
    source = opened("gs://sums", endpoint_url=gs.url, anonymous=True)
    with pytest.raises(RemoteFailed, match="checksum"):
        source.read(ref(source, b"x"), 0, 5)
    assert source.read(ref(source, b"x"), 0, 3) == b"wro"  # a range has no checksum


# -- az


def test_az_keys_signatures_and_containers(
    azurite: Azurite, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT"):
        opened("az://container")
    key = azurite.env()["AZURE_STORAGE_KEY"]
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={azurite.url};",
    )
    with pytest.raises(NotFound, match="no such container: none-here"):
        opened("az://none-here").check()
    azurite.create("letin")
    azurite.put("letin", {"x": b"bytes"})
    source = opened("abfss://letin@devstoreaccount1.dfs.core.windows.net", endpoint_url=azurite.url)
    assert source.read(ref(source, b"x"), 0, 5) == b"bytes"
    assert key not in source.id + repr(vars(source))
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"AccountName=devstoreaccount1;AccountKey=AAAA;BlobEndpoint={azurite.url};",
    )
    with pytest.raises(AccessDenied, match="refused"):
        opened("az://letin").check()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={azurite.url};")
    with pytest.raises(AccessDenied, match=r"gpufs\[az\]"):
        opened("az://letin").check()


# -- http


def test_a_manifest_needs_no_index_and_no_request_per_file(nginx: WebServer, opened: Open) -> None:
    root = nginx.root / "manifest"
    fill(root, FILES)
    rows = 'path,size,etag\na,1\nd/b,100000\n"d/c,d",3\n../out,1\n'
    lines = "".join(json.dumps({"path": p.decode(), "size": len(c)}) + "\n" for p, c in FILES.items())
    for name, text in (("list.csv", rows), ("list.jsonl", lines)):
        (root / name).write_text(text)
        metrics = Metrics()
        source = opened(f"{nginx.url}manifest/{name}", metrics)
        source.check()
        assert by_lists(source) == by_walk(source) == expected(FILES)
        assert metrics.remote_requests.value < 8
        assert source.read(ref(source, b"d/b"), 5, 100) == FILES[b"d/b"][5:105]
        assert source.read(ref(source, b"d/c,d"), 0, 3) == b"333"
        with pytest.raises(VersionGone):
            source.read(ObjectRef(b"a", source.stat(b"a").version, 2), 0, 2)
    (root / "bad.csv").write_text("a,1\nb,many\n")
    with pytest.raises(RemoteFailed, match="entry 2"):
        opened(f"{nginx.url}manifest/bad.csv").check()


def test_what_is_no_index_is_said(nginx: WebServer, opened: Open) -> None:
    with pytest.raises(NotFound):
        opened(f"{nginx.url}none/").check()


def test_http_faults(nginx: WebServer, opened: Open, short: None) -> None:
    """A connection that breaks in the middle is repeated; silence ends with the deadline."""
    fill(nginx.root / "faults", FILES)
    with fault_proxy(nginx.url) as proxy:
        source = opened(f"{proxy.url}/faults/")
        whole = ref(source, b"d/b")
        proxy.add(Fault("close", "GET", times=1, after=1000))
        proxy.add(Fault("status", "GET", times=1, status=503))
        assert source.read(whole, 0, whole.size) == FILES[b"d/b"]
        proxy.add(Fault("stall", "GET", after=1000))
        with pytest.raises(DeadlineExceeded):
            source.read(whole, 0, whole.size)
        proxy.clear()
        proxy.refuse()
        with pytest.raises(RemoteFailed, match="cannot connect"):
            source.read(whole, 0, whole.size)


# -- fsspec


def test_what_is_wrong_with_a_file_server_is_said(
    ftp: FileServer, sftp: FileServer, opened: Open, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    monkeypatch.setattr("gpufs.source.fsspec.source._CHECK_DEADLINE", 5.0)  # it lets one wait for a "no"
    monkeypatch.setenv("NETRC", "/nonexistent")
    with pytest.raises(AccessDenied, match="530"):
        opened(ftp.url).check()
    monkeypatch.setenv("NETRC", ftp.env["NETRC"])
    with pytest.raises(NotFound):
        opened(ftp.url + "/none").check()
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(AccessDenied, match="known_hosts"):
        opened(sftp.url).check()
    with pytest.raises(RemoteFailed, match="refused"):
        opened("ftp://127.0.0.1:1/x").check()
    with pytest.raises(UsageError, match=r"pip install 'gpufs\[fsspec\]' pyarrow"):
        opened("hdfs://127.0.0.1/x").check()


def test_samba_says_no(smb: FileServer, opened: Open, monkeypatch: pytest.MonkeyPatch, short: None) -> None:
    for name, value in smb.env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotFound):
        opened(smb.url.replace("/data", "/none")).check()
    monkeypatch.setenv("FSSPEC_SMB_PASSWORD", "wrong")
    with pytest.raises(AccessDenied):
        opened(smb.url).check()


def test_an_ftp_server_that_is_restarted(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with ftp_server() as server:
        fill(server.root, FILES)
        monkeypatch.setenv("NETRC", server.env["NETRC"])
        source = opened(server.url)
        assert listed(source)[b"a"].size == 1
    port = int(server.url.rpartition(":")[2])
    with ftp_server(port) as again:
        fill(again.root, FILES)
        monkeypatch.setenv("NETRC", again.env["NETRC"])
        assert source.read(ref(source, b"d/b"), 3, 50_000) == FILES[b"d/b"][3:50_003]
