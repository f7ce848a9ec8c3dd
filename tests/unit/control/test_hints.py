"""The daemon's end of hints: who is heard, and what is made of what they name."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gpufs.control import server
from gpufs.control.hints import LISTINGS, NAME_LENGTH, SLICE, Hints, may_read
from gpufs.control.server import Peer, serve
from gpufs.errors import AccessDenied, MountFailed, UsageError
from gpufs.fetch.prefetch import Announcer
from gpufs.index import Index, Inode
from gpufs.source.base import Entry, Kind
from gpufs.view import Ownership, View
from tests.unit.fetch.test_warm import FakeTree

STRANGER = Peer(77, os.geteuid() + 1000, frozenset((5000, 5001)))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index", "source")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("ownership", "others", "heard"),
    [
        (Ownership(None, None, None, None), True, True),
        (Ownership(None, None, None, None), False, False),
        (Ownership(None, None, None, 0o700), True, False),
        (Ownership(None, None, None, 0o701), True, False),
        (Ownership(STRANGER.uid, None, None, 0o500), True, True),
        (Ownership(STRANGER.uid, None, None, 0o055), True, False),
        (Ownership(0, 5001, None, 0o750), True, True),
        (Ownership(0, 5001, None, 0o705), True, False),
        (Ownership(0, 5002, None, 0o750), True, False),
    ],
)
def test_who_may_list_the_tree_is_heard(
    index: Index, ownership: Ownership, others: bool, heard: bool
) -> None:
    admits = may_read(index, View(ownership), others)
    assert admits(STRANGER) == heard
    assert admits(Peer(1, 0, frozenset())) and admits(Peer(1, os.geteuid(), frozenset()))


class Taken:
    """Takes `most` files at a time."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.calls: list[tuple[Announcer, list[int], int, bool]] = []

    def __call__(self, announcer: Announcer, numbers: Sequence[int], unknown: int, *, begin: bool) -> int:
        self.calls.append((announcer, list(numbers), unknown, begin))
        return min(len(numbers), self.most)


def told(index: Index, contents: dict[bytes, list[Entry]], taken: Taken, **request: Any) -> int:
    tree = FakeTree(index, contents)
    tree.failing[b"denied"] = AccessDenied("no")

    async def main() -> dict[str, Any]:
        return await Hints(tree, index, taken).announce({"peer": STRANGER, **request})

    return int(trio.run(main)["taken"])


CONTENTS = {
    b"": [Entry(name, Kind.DIRECTORY) for name in (b"a", b"b", b"denied")],
    b"a": [Entry(b"%03d" % n, Kind.FILE, 1, 1, "v") for n in range(600)],
    b"b": [Entry(b"\xff", Kind.FILE, 1, 1, "v")],
}


def test_paths_become_files_in_their_order(index: Index) -> None:
    """Directories that were never listed are listed; what is not there is only counted."""
    paths = [f"a/{n:03}" for n in reversed(range(600))]
    given = [*paths, "b/\udcff", "a/gone", "denied/x", "c/x", "", "a//1", "x" * 5000]
    taken = Taken()
    assert told(index, CONTENTS, taken, name="n" * 500, paths=given) == len(given)
    expected = [index.resolve(os.fsencode(path)) for path in given[:601]]
    assert [number for _, numbers, _, _ in taken.calls for number in numbers] == [
        i.number for i in expected if i
    ]
    assert sum(unknown for _, _, unknown, _ in taken.calls) == 6
    assert [begin for *_, begin in taken.calls] == [True] + [False] * (len(given) // SLICE)
    assert {who for who, *_ in taken.calls} == {Announcer(STRANGER.uid, STRANGER.pid, "n" * NAME_LENGTH)}


def test_directories_are_listed_side_by_side(index: Index) -> None:
    """A shuffled order begins in a thousand directories, and whoever announces it waits for seconds only."""
    names = [b"%04d" % n for n in range(1000)]
    contents = {name: [Entry(b"x", Kind.FILE, 1, 1, "v")] for name in names}
    contents[b""] = [Entry(name, Kind.DIRECTORY) for name in names]
    tree, taken = FakeTree(index, contents), Taken()
    request = {"peer": STRANGER, "paths": [f"{n:04}/x" for n in range(1000)]}
    trio.run(Hints(tree, index, taken).announce, request)
    assert sum(len(numbers) for _, numbers, _, _ in taken.calls) == 1000
    assert tree.most_at_once == LISTINGS


def test_a_listing_that_does_not_end_is_not_waited_for(index: Index) -> None:
    """The files of which nothing is known yet are left out."""
    tree, taken = FakeTree(index, CONTENTS), Taken()
    children = tree.children

    async def slow(parent: int, after: bytes | None, limit: int) -> tuple[list[Inode], float]:
        if index.path(parent) == b"a":
            await trio.sleep_forever()
        return await children(parent, after, limit)

    tree.children = slow  # type: ignore[method-assign]
    request = {"peer": STRANGER, "paths": ["b/\udcff", *(f"a/{n:03}" for n in range(600))]}
    answer = trio.run(
        Hints(tree, index, taken).announce, request, clock=trio.testing.MockClock(autojump_threshold=0)
    )
    assert answer == {"taken": 601}
    assert [(len(numbers), unknown) for _, numbers, unknown, _ in taken.calls] == [
        (1, 255),
        (0, 256),
        (0, 89),
    ]


def test_it_ends_when_no_more_fit(index: Index) -> None:
    taken = Taken(most=100)
    assert told(index, CONTENTS, taken, paths=[f"a/{n:03}" for n in range(600)], begin=False) == 100
    assert len(taken.calls) == 1 and not taken.calls[0][3]


@pytest.mark.parametrize("request_", [{}, {"paths": "a"}, {"paths": [1]}, {"paths": [], "name": 1}])
def test_nonsense_is_refused(index: Index, request_: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        told(index, CONTENTS, Taken(), **request_)


def with_public_server(
    directory: Path, admits: Callable[[Peer], bool], test: Callable[[], Awaitable[None]]
) -> None:
    async def show(request: dict[str, Any]) -> dict[str, Any]:
        return {"uid": request["peer"].uid, "pid": request["peer"].pid}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, str(directory / "h.sock"), {"show": show}, admits)
            with trio.fail_after(20):
                await test()
            nursery.cancel_scope.cancel()

    trio.run(main)


def ask(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        with suppress(BrokenPipeError):  # who is not admitted may be told so before that
            sock.sendall(b'{"op": "show", "peer": [1, 0, []]}\n')
        with sock.makefile("rb") as replies:
            return dict(json.loads(replies.readline()))


@pytest.mark.skipif(os.geteuid() != 0, reason="is open to others for root's mounts only")
def test_others_can_connect_and_the_kernel_says_who_they_are(tmp_path: Path) -> None:
    directory = tmp_path / "hints"

    async def test() -> None:
        reply = await trio.to_thread.run_sync(ask, directory / "h.sock")
        assert reply["result"] == {"uid": 0, "pid": os.getpid()}
        assert directory.stat().st_mode & 0o777 == 0o755
        assert (directory / "h.sock").stat().st_mode & 0o777 == 0o666

    with_public_server(directory, lambda peer: True, test)


def test_who_is_not_admitted_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        reply = await trio.to_thread.run_sync(ask, tmp_path / "hints" / "h.sock")
        assert not reply["ok"] and reply["kind"] == "AccessDenied"

    with_public_server(tmp_path / "hints", lambda peer: False, test)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory another user's")
def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)

    async def test() -> None:
        raise AssertionError("served")

    with pytest.raises(BaseExceptionGroup) as raised:
        with_public_server(tmp_path, lambda peer: True, test)
    assert raised.group_contains(MountFailed)


def test_strangers_that_say_nothing_do_not_take_all_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_STRANGERS", 2)
    path = tmp_path / "hints" / "h.sock"

    async def test() -> None:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for sock in silent:
            sock.connect(str(path))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.05):
            await trio.to_thread.run_sync(ask, path, abandon_on_cancel=True)
            raise AssertionError("a third was heard")
        for sock in silent:
            sock.close()
        assert (await trio.to_thread.run_sync(ask, path))["ok"]

    with_public_server(tmp_path / "hints", lambda peer: True, test)
