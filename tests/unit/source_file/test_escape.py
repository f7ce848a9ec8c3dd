"""No path and no race leads out of the mounted tree."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.errors import GpufsError, NotADirectory, NotFound, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef
from gpufs.source.file import FileSource

BAD_PATHS = [
    b"..",
    b"../outside/secret",
    b"d/../../outside/secret",
    b"d/..",
    b".",
    b"./d",
    b"d/./f",
    b"/d",
    b"d/",
    b"d//f",
    b"/",
    b"//",
    b"d\0/f",
    b"n" * 300,
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`tmp/root/d/f` is inside, `tmp/outside/f` with the same content outside."""
    for directory in ("root/d", "outside"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "root/d/f").write_bytes(b"inside")
    (tmp_path / "outside/f").write_bytes(b"SECRET")
    return tmp_path / "root"


@pytest.fixture
def source(root: Path) -> Iterator[FileSource]:
    source = FileSource(root, Metrics())
    yield source
    source.close()


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_are_no_names_inside_are_not_found(source: FileSource, path: bytes) -> None:
    with pytest.raises(NotFound):
        source.stat(path)
    with pytest.raises(NotFound):
        list(source.list(path))
    with pytest.raises((NotFound, VersionGone)):
        source.read(ObjectRef(path, "1-1-1", 1), 0, 1)


def test_links_to_the_outside_are_not_followed_anywhere(root: Path, source: FileSource) -> None:
    os.symlink("../outside", root / "out")
    os.symlink("../../outside/f", root / "d/link")
    secret = os.stat(root / "out/f")
    version = f"{secret.st_ino}-{secret.st_mtime_ns}-{secret.st_ctime_ns}"
    with pytest.raises(NotFound):
        source.stat(b"out/f")
    with pytest.raises(NotADirectory):
        list(source.list(b"out"))
    for path in (b"out/f", b"d/link"):
        with pytest.raises(VersionGone):
            source.read(ObjectRef(path, version, 6), 0, 6)


def test_a_component_swapped_for_a_link_halfway_down_leads_nowhere(
    root: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap happens right after the parent was opened, before the name below is."""
    entry = source.stat(b"d/f")
    ref = ObjectRef(b"d/f", entry.version, entry.size)
    open_ = os.open

    def swap_then_open(path: bytes, flags: int, **how: int) -> int:
        if path == b"d" and not (root / "d").is_symlink():
            (root / "d").rename(root / "moved")
            os.symlink("../outside", root / "d")
        return open_(path, flags, **how)

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(VersionGone):
        source.read(ref, 0, 6)
    with pytest.raises(NotFound):
        source.stat(b"d/f")
    with pytest.raises(NotADirectory):
        list(source.list(b"d"))


def test_a_directory_swapped_to_and_fro_never_gives_a_byte_of_the_outside(
    root: Path, source: FileSource
) -> None:
    """A thread exchanges `d` and a link to the outside while this one lists, stats and reads."""
    entry = source.stat(b"d/f")
    ref = ObjectRef(b"d/f", entry.version, entry.size)
    outside = os.stat(root.parent / "outside/f").st_ino
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "d", root / "moved")
            os.symlink("../outside", root / "d")
            os.unlink(root / "d")
            os.rename(root / "moved", root / "d")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(1000):
            try:
                assert not source.stat(b"d/f").version.startswith(f"{outside}-")
                assert bytes(source.read(ref, 0, 6)) == b"inside"
                for page in source.list(b"d"):
                    assert not any(e.version.startswith(f"{outside}-") for e in page.entries)
            except GpufsError:
                continue
    finally:
        stop.set()
        swapper.join()
    assert bytes(source.read(ref, 0, 6)) == b"inside"
