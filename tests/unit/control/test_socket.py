"""The control socket, both ends, over a real Unix socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from gpufs import errors
from gpufs.control import client, paths, server
from gpufs.control.client import NobodyListens, call, daemon_pid
from gpufs.control.paths import Mount

Test = Callable[[], Awaitable[None]]
MOUNT = Mount("/data", paths.FSTYPE, "s3://b", os.geteuid())


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sockets of this test in a directory of its own."""
    directory = tmp_path / "run"
    monkeypatch.setattr(paths, "runtime_dir", lambda owner: str(directory))
    return directory


def where() -> str:
    return paths.socket_path(MOUNT.mountpoint, MOUNT.owner)


async def echo(request: dict[str, Any]) -> dict[str, Any]:
    return request


def with_server(test: Test, **handlers: server.Handler) -> None:
    """Run `test` beside a server of `handlers` (and `echo`); the server must still be alive at the end."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, where(), {"echo": echo, **handlers})
            with trio.fail_after(20):
                await test()
                assert (await ask("echo", alive=True))["alive"] is True
            nursery.cancel_scope.cancel()

    trio.run(main)


async def ask(op: str, **arguments: Any) -> dict[str, Any]:
    return await trio.to_thread.run_sync(lambda: call(MOUNT, op, **arguments))


def raw(data: bytes) -> dict[str, Any]:
    """Send bytes as they are, end the sending side, return the reply."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(where())
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass  # refused before everything was read; the reply is there
        with sock.makefile("rb") as replies:
            reply: dict[str, Any] = json.loads(replies.readline())
            return reply


def test_a_request_reaches_its_handler_and_the_result_comes_back() -> None:
    async def test() -> None:
        weird = os.fsdecode(b"a \xff\n\xc3\xa9")
        assert await ask("echo", path=weird) == {"op": "echo", "path": weird}

    with_server(test)


def test_the_socket_is_for_its_owner_only_and_goes_with_the_server(runtime: Path) -> None:
    async def test() -> None:
        (found,) = runtime.iterdir()
        assert found.stat().st_mode & 0o7777 == 0o600
        assert runtime.stat().st_mode & 0o7777 == 0o700
        assert await trio.to_thread.run_sync(daemon_pid, MOUNT) == os.getpid()

    with_server(test)
    assert list(runtime.iterdir()) == []


def test_errors_of_a_handler_come_back_as_the_same_class() -> None:
    async def missing(request: dict[str, Any]) -> dict[str, Any]:
        raise errors.NotFound("no such path: x")

    async def test() -> None:
        with pytest.raises(errors.NotFound, match="no such path: x"):
            await ask("missing")

    with_server(test, missing=missing)


def test_a_bug_in_a_handler_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("oops")

    async def test() -> None:
        with pytest.raises(errors.GpufsError, match="internal error: ZeroDivisionError"):
            await ask("broken")

    with_server(test, broken=broken)
    assert "a control request failed" in caplog.text


def test_a_result_that_is_not_json_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    async def odd(request: dict[str, Any]) -> dict[str, Any]:
        return {"x": object()}

    async def test() -> None:
        with pytest.raises(errors.GpufsError, match="internal error"):
            await ask("odd")

    with_server(test, odd=odd)
    assert "a control request failed" in caplog.text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not one line of JSON"),
        (b"{\n", "not one line of JSON"),
        (b"\xff\xfe\n", "not one line of JSON"),
        (b"[" * 50_000 + b"\n", "not one line of JSON"),
        (b"[1]\n", 'an object with a text "op"'),
        (b'{"op": 3}\n', 'an object with a text "op"'),
        (b'{"op": "nope"}\n', "unknown request 'nope'; known are echo"),
        (b'{"op": "' + b"x" * (1 << 20) + b'"}\n', "longer than 65536 bytes"),
    ],
)
def test_a_wrong_request_gets_an_error_reply(data: bytes, says: str) -> None:
    async def test() -> None:
        reply = await trio.to_thread.run_sync(raw, data)
        assert reply["ok"] is False and reply["kind"] == "UsageError"
        assert says in reply["error"]

    with_server(test)


def test_clients_that_say_nothing_or_do_not_read_block_nobody() -> None:
    async def big(request: dict[str, Any]) -> dict[str, Any]:
        return {"x": "y" * (8 << 20)}

    async def test() -> None:
        idle = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        try:
            for number, sock in enumerate(idle):
                sock.connect(where())
                sock.sendall(b'{"op": "big"}\n' if number % 2 else b'{"op": ')
            assert (await ask("echo", n=1))["n"] == 1
            assert len((await ask("big"))["x"]) == 8 << 20
        finally:
            for sock in idle:
                sock.close()

    with_server(test, big=big)


def test_a_silent_client_is_dropped_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.05)

    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(where())
            assert await trio.to_thread.run_sync(sock.recv, 1) == b""

    with_server(test)


def test_a_long_handler_may_take_longer_than_a_silent_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.05)

    async def slow(request: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep(0.2)  # longer than the patience: what is tested
        return {"done": True}

    async def test() -> None:
        assert await ask("slow") == {"done": True}

    with_server(test, slow=slow)


def test_a_client_gives_up_after_its_timeout() -> None:
    async def stuck(request: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep_forever()

    async def test() -> None:
        with pytest.raises(errors.DeadlineExceeded, match=r"/data gave no answer in 0\.05 s"):
            await ask("stuck", timeout=0.05)

    with_server(test, stuck=stuck)


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = server.Peer(1, os.geteuid() + 1, frozenset())
    monkeypatch.setattr(server, "_peer", lambda sock: stranger)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, where(), {"echo": echo})
            with pytest.raises(errors.AccessDenied, match="takes no orders from uid"):
                await ask("echo")
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_kernel_tells_who_asks(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the file modes let a stranger connect, the credentials of the peer give him away."""
    # The socket is opened by descriptor: a stranger cannot pass the private directory.
    script = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    fd = os.open(sys.argv[1], os.O_PATH)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    sock.connect(f"/proc/self/fd/{fd}")
    print(sock.makefile().readline())
"""

    async def test() -> None:
        path = where()
        os.chmod(path, 0o666)
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
        )
        assert "no orders from uid 65534" in done.stdout, done.stderr

    with_server(test)


def test_nobody_listening_is_told(runtime: Path) -> None:
    with pytest.raises(NobodyListens, match="no gpufs daemon answers for /data"):
        call(MOUNT, "status")
    stale(runtime)
    with pytest.raises(NobodyListens, match="no gpufs daemon answers for /data"):
        daemon_pid(MOUNT)


def stale(runtime: Path) -> Path:
    """A socket file without a server, as a killed daemon leaves it."""
    paths.make_private(str(runtime))
    path = Path(where())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    return path


def test_a_stale_socket_is_replaced(runtime: Path) -> None:
    left = stale(runtime).stat().st_ino

    async def test() -> None:
        assert await ask("echo") == {"op": "echo"}
        (now,) = runtime.iterdir()
        assert now.stat().st_ino != left

    with_server(test)


def test_an_ending_daemon_leaves_its_successors_socket_alone(runtime: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as new:
            async with trio.open_nursery() as old:
                await old.start(server.serve, where(), {})
                await new.start(server.serve, where(), {"echo": echo})
                old.cancel_scope.cancel()
            assert await ask("echo") == {"op": "echo"}
            new.cancel_scope.cancel()

    trio.run(main)
    assert list(runtime.iterdir()) == []


def test_another_users_socket_is_told_apart_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: str) -> None:
        raise PermissionError

    monkeypatch.setattr(client.socket.socket, "connect", refuse)
    with pytest.raises(errors.AccessDenied, match="mounted by uid 0; ask as that user or root"):
        call(Mount("/data", paths.FSTYPE, "s3://b", 0), "status")


@pytest.mark.parametrize(
    ("kind", "name"), [("errno_of", "GpufsError"), ("nonsense", "GpufsError"), ("ReadOnly", "ReadOnly")]
)
def test_only_classes_of_gpufs_errors_are_raised(kind: str, name: str) -> None:
    answer_once(json.dumps({"ok": False, "error": "x", "kind": kind}).encode() + b"\n", name)


def test_a_daemon_that_dies_before_its_answer_is_told() -> None:
    answer_once(b'{"ok": tr', "NobodyListens")


def answer_once(answer: bytes, expected: str) -> None:
    """Ask a server that gives `answer`, whatever it is asked, and expect that error."""
    path = where()
    paths.make_private(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as thread:
        listener.settimeout(10)
        listener.bind(path)
        listener.listen()
        asked = thread.submit(call, MOUNT, "status", timeout=10)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)
        error = asked.exception(10)
    assert type(error).__name__ == expected
