"""Real mounts of sources other than S3 and directories: read cold, refreshed, without a secret in sight."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import MountFactory
from tests.servers import Azurite, FileServer, GsServer, WebServer
from tests.servers.azurite import KEY
from tests.servers.file_servers import PASSWORD

TREE = {"a": b"1" * 100, "d/b": os.urandom(5 << 20), "d/e/c": b"3"}
TreeOf = Callable[[Path], dict[str, bytes]]


def put(root: Path, tree: dict[str, bytes], mtime: float | None = None) -> None:
    for name, body in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        if mtime is not None:
            os.utime(path, (mtime, mtime))


def change(root: Path) -> dict[str, bytes]:
    put(root, {"a": b"2" * 100, "new": b"n"}, mtime=(root / "a").stat().st_mtime + 5)
    return TREE | {"a": b"2" * 100, "new": b"n"}


def test_a_web_server(nginx: WebServer, mount: MountFactory, tree_of: TreeOf, fast_path: str) -> None:
    """In both modes."""
    root = nginx.root / f"mount-{fast_path}"
    put(root, TREE)
    mounted = mount(f"{nginx.url}{root.name}/")
    assert tree_of(mounted.path) == TREE
    now = change(root)
    mounted.refresh()
    assert tree_of(mounted.path) == now


@pytest.mark.parametrize("fast_path", ["auto"], indirect=True)
def test_a_google_bucket(gs: GsServer, mount: MountFactory, tree_of: TreeOf) -> None:
    gs.buckets["mounted"] = {}
    gs.put("mounted", TREE)
    mounted = mount("gs://mounted", endpoint_url=gs.url, anonymous="true")
    assert tree_of(mounted.path) == TREE
    gs.put("mounted", {"a": b"2" * 100})
    mounted.refresh()
    assert tree_of(mounted.path) == TREE | {"a": b"2" * 100}


@pytest.mark.parametrize("fast_path", ["auto"], indirect=True)
def test_an_azure_container(
    azurite: Azurite, mount: MountFactory, tree_of: TreeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in azurite.env().items():
        monkeypatch.setenv(name, value)
    azurite.create("mounted")
    azurite.put("mounted", TREE)
    mounted = mount("az://mounted", endpoint_url=azurite.url)
    assert tree_of(mounted.path) == TREE
    azurite.put("mounted", {"a": b"2" * 100})
    mounted.refresh()
    assert tree_of(mounted.path) == TREE | {"a": b"2" * 100}
    for pid in mounted.pids():
        assert KEY not in Path(f"/proc/{pid}/cmdline").read_text()
    assert KEY not in mounted.log() + str(mounted.status())


@pytest.mark.parametrize("fast_path", ["auto"], indirect=True)
@pytest.mark.parametrize("kind", ["ftp", "sftp", "smb"])
def test_a_file_server(
    kind: str,
    request: pytest.FixtureRequest,
    mount: MountFactory,
    tree_of: TreeOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: FileServer = request.getfixturevalue(kind)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    root = server.root / "mount"
    put(root, TREE)
    mounted = mount(f"{server.url}/mount")
    assert tree_of(mounted.path) == TREE
    now = change(root)
    mounted.refresh()
    assert tree_of(mounted.path) == now
    seen = mounted.log() + Path("/proc/self/mountinfo").read_text() + str(mounted.status())
    for pid in mounted.pids():
        seen += Path(f"/proc/{pid}/cmdline").read_text()
    assert PASSWORD not in seen
