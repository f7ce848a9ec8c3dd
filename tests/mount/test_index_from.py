"""--index-from: a tree that was never listed, with the bytes of the source behind it."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import MountFactory
from tests.servers import BUCKET, listing_server

pytestmark = pytest.mark.fuse

TreeOf = Callable[[Path], dict[str, bytes]]


def test_from_a_list_no_listing_is_asked_for(mount: MountFactory, tmp_path: Path, tree_of: TreeOf) -> None:
    """Names, sizes and bytes are right; a refresh finds nothing changed; a remount needs no list."""
    files = {f"d{n % 7}/{n:03d} x.bin": b"%d" % n * n for n in range(100)}
    objects = {name.encode(): body for name, body in files.items()}
    path = tmp_path / "all objects.csv"
    with listing_server(objects) as (scripted, server):
        path.write_text(
            "".join(
                f"{name.replace(' ', '+')},{len(body)},{hashlib.md5(body).hexdigest()},{scripted.modified}\n"
                for name, body in files.items()
            )
        )
        mounted = mount(f"s3://{BUCKET}", server, start=False)
        done = mounted.command(
            *("mount", mounted.source, str(mounted.path), "-o", mounted.option_text()),
            *("--index-from", str(path)),
        )
        assert done.returncode == 0, done.stderr
        assert "100 files from" in done.stdout + done.stderr
        assert tree_of(mounted.path) == files
        assert not os.path.exists(mounted.path / "d0/none")
        assert scripted.counts["LIST"] == 0, scripted.counts
        status = mounted.status()
        assert (status["crawled"], status["files"], status["directories"]) == (True, 100, 7)
        inodes = {name: (mounted.path / name).stat().st_ino for name in files}
        fetched = scripted.counts["GET"]
        mounted.refresh()
        assert scripted.counts["LIST"] > 0
        assert inodes == {name: (mounted.path / name).stat().st_ino for name in files}
        assert tree_of(mounted.path) == files
        assert scripted.counts["GET"] == fetched
        path.unlink()
        mounted.remount()
        assert tree_of(mounted.path) == files


def test_a_list_that_cannot_be_used_mounts_nothing(mount: MountFactory, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("a,1,e\nb,many,e\n")
    with listing_server({b"a": b"1"}) as (scripted, server):
        mounted = mount(f"s3://{BUCKET}", server, start=False, index_from=str(path))
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert done.returncode != 0
        assert "list.csv, line 2: " in done.stderr
        assert not os.path.ismount(mounted.path)
        assert scripted.counts["LIST"] == 0


def test_what_has_changed_since_the_list_gives_no_wrong_byte(mount: MountFactory, tmp_path: Path) -> None:
    """Replaced: `ESTALE` at most, and then the new bytes. Deleted: not there. Added: after a refresh."""
    objects = {b"d/same": b"same", b"d/replaced": b"new!", b"d/added": b"added"}
    path = tmp_path / "list.csv"
    listed = {"d/same": b"same", "d/replaced": b"old!", "d/deleted": b"gone"}
    path.write_text(
        "".join(f"{key},{len(body)},{hashlib.md5(body).hexdigest()}\n" for key, body in listed.items())
    )
    with listing_server(objects) as (scripted, server):
        mounted = mount(f"s3://{BUCKET}", server, index_from=str(path))
        assert sorted(os.listdir(mounted.path / "d")) == ["deleted", "replaced", "same"]
        assert (mounted.path / "d/same").read_bytes() == b"same"
        assert scripted.counts["LIST"] == 0
        assert content(mounted.path / "d/replaced") == b"new!"
        assert content(mounted.path / "d/deleted") is None
        mounted.refresh()
        assert sorted(os.listdir(mounted.path / "d")) == ["added", "replaced", "same"]
        assert (mounted.path / "d/added").read_bytes() == b"added"


def content(path: Path) -> bytes | None:
    """None where nothing is. The first open may find the version gone: then the name is looked up anew."""
    for _ in range(2):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            assert error.errno == errno.ESTALE
    raise AssertionError(f"{path} stays stale")
