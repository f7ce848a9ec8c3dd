"""Hints as a training process gives them: what is sent, to whom, and that nothing can go wrong by it."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufs import hints
from gpufs.control import paths
from tests.documented import documented

MODULE = Path(hints.__file__)
LINE = "62 27 0:40 {root} {point} ro,relatime shared:1 - {type} s3://b ro,user_id={owner},group_id=0\n"


class Daemon:
    """Answers one request per connection with `taken`, or refuses."""

    def __init__(self, path: Path) -> None:
        self.requests: list[dict[str, Any]] = []
        self.most = 10**9
        self.sizes: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            with peer, peer.makefile("rb") as lines:
                line = lines.readline()
                if not line:
                    return
                self.sizes.append(len(line))
                request = json.loads(line)
                self.requests.append(request)
                taken = min(len(request["paths"]), self.most)
                self.most -= taken
                peer.sendall(json.dumps({"ok": True, "result": {"taken": taken}}).encode() + b"\n")

    def paths(self) -> list[str]:
        return [path for request in self.requests for path in request["paths"]]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._socket.getsockname())
        self._thread.join()
        self._socket.close()


class World:
    """A made-up mount, and the daemon behind it."""

    def __init__(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point = work / "mnt"
        self.point.mkdir()
        self._mountinfo = work / "mountinfo"
        self.socket = work / "hints.sock"
        self.mounted()
        monkeypatch.setattr(hints, "_MOUNTINFO", str(self._mountinfo))
        monkeypatch.setattr(hints, "_socket_paths", lambda device, owner: [str(self.socket)])
        monkeypatch.setattr(hints, "_STARTING", 0.0)
        self.daemon = Daemon(self.socket)

    def mounted(self, *, root: str = "/", type: str = "fuse.gpufs", owner: int | None = None) -> None:
        owner = os.geteuid() if owner is None else owner
        lines = LINE.format(root="/", point="/", type="ext4", owner=0)
        self._mountinfo.write_text(lines + LINE.format(root=root, point=self.point, type=type, owner=owner))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.daemon.close()


def test_any_way_to_write_a_path_is_understood(world: World, tmp_path: Path) -> None:
    (world.point / "sub").mkdir()
    (tmp_path / "link").symlink_to(world.point)
    weird = b"a \xff\n\xc3\xa9"
    given = ["x/1", b"x/2", Path("x/3"), f"{world.point}/x/4", "./x//5", "x/y/../6", weird, ".hidden"]
    expected = ["x/1", "x/2", "x/3", "x/4", "x/5", "x/6", os.fsdecode(weird), ".hidden"]
    assert hints.announce(world.point, given)
    assert hints.announce(tmp_path / "link", iter([tmp_path / "link" / "x", world.point / "y", "z"]))
    assert hints.announce(os.fsencode(world.point / "sub"), ["1", world.point / "2", "/elsewhere/3"])
    assert world.daemon.paths() == [*expected, "x", "y", "z", "sub/1", "2", ""]


def test_a_bind_mount_of_a_part_names_files_as_the_tree_does(world: World) -> None:
    world.mounted(root="/train/a\\040b")
    assert hints.announce(world.point, ["1", world.point / "2"])
    assert world.daemon.paths() == ["train/a b/1", "train/a b/2"]


def test_a_long_order_comes_in_pieces_that_belong_together(world: World) -> None:
    given = [f"{'d' * 100}/{number:06}é" for number in range(3000)]
    assert hints.announce(world.point, (path for path in given), name="train")
    assert world.daemon.paths() == given and max(world.daemon.sizes) <= 64 * 1024
    first, *others = world.daemon.requests
    assert first["begin"] and not any(request["begin"] for request in others) and len(others) > 3
    assert {(request["op"], request["name"]) for request in world.daemon.requests} == {("announce", "train")}


def test_an_empty_order_ends_the_one_before(world: World) -> None:
    assert hints.announce(world.point, [])
    assert world.daemon.requests == [{"op": "announce", "name": "", "begin": True, "paths": []}]


def test_what_does_not_fit_is_told_and_no_more_is_sent(world: World) -> None:
    world.daemon.most = 700
    assert not hints.announce(world.point, [f"{number:0200}" for number in range(3000)])
    assert len(world.daemon.requests) == 4


def test_nothing_happens_without_a_mount(world: World) -> None:
    """Not even to the iterator: the job is the same with and without gpufs."""
    paths_left = iter(["1", "2"])
    world.mounted(type="ext4")
    assert not hints.announce(world.point, paths_left) and list(paths_left) == ["1", "2"]
    assert not hints.announce("/nonexistent", ["1"]) and world.daemon.requests == []


def test_a_daemon_that_is_not_there_or_refuses_is_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_socket_paths", lambda device, owner: [f"{world.socket}.gone"])
    assert not hints.announce(world.point, ["1"])
    monkeypatch.setattr(hints, "_send", lambda *_: json.loads("{"))
    assert not hints.announce(world.point, ["1"])


def test_nobody_but_the_mounts_own_daemon_is_told(world: World) -> None:
    world.mounted(owner=os.geteuid() + 1)
    assert not hints.announce(world.point, ["secret"]) and world.daemon.requests == []


def test_what_the_paths_raise_comes_through(world: World) -> None:
    def paths_of() -> Iterator[str]:
        yield "1"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hints.announce(world.point, paths_of())


def test_who_is_refused_before_he_has_spoken_learns_why(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b'{"ok": false, "error": "no orders from uid 5"}\n')
    theirs.close()
    monkeypatch.setattr(hints, "_connected", lambda sockets: ours)
    assert not hints.announce(world.point, ["1"])
    assert "no orders from uid 5" in caplog.text


def test_one_path_in_place_of_a_list_is_a_mistake_that_is_told(world: World) -> None:
    for path in ("train/1.jpeg", b"train/1.jpeg"):
        with pytest.raises(TypeError, match="one path"):
            hints.announce(world.point, path)
    assert world.daemon.requests == []


def test_both_ends_mean_the_same_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hints._socket_paths("0:53", 0) == [paths.hints_path("0:53", 0)]
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert paths.hints_path("0:53", 4_000_000) in hints._socket_paths("0:53", 4_000_000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert hints._socket_paths("0:53", 1234)[0] == paths.hints_path("0:53", 1234)


def test_it_needs_the_standard_library_only_and_can_be_copied() -> None:
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(MODULE.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_importing_it_does_nothing() -> None:
    code = "import threading, gpufs.hints; assert threading.active_count() == 1"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=MODULE.parents[1]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_sampler_of_the_documentation_announces_what_it_yields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make train` runs it with PyTorch."""
    sampler_class = documented("hints.md")["AnnouncingSampler"]
    announced: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(hints, "announce", lambda point, order: announced.append((point, list(order))))
    sampler = sampler_class([2, 0, 1], ["a", "b", "c"], "/data")
    assert len(sampler) == 3 and not announced
    for _ in range(2):
        assert list(sampler) == [2, 0, 1]
    assert announced == [("/data", ["c", "a", "b"])] * 2
