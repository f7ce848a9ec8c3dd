"""The daemon's end of the control socket: one request and one reply per connection, JSON lines."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from gpufs.control.paths import make_private, make_public
from gpufs.errors import AccessDenied, GpufsError, UsageError

Request = dict[str, Any]
Handler = Callable[[Request], Awaitable[dict[str, Any]]]

_MAX_LINE = 64 * 1024
_PATIENCE_S = 10.0  # for a client to send its request, and again to take the reply
_STRANGERS = 16  # connections at once to a socket that is open to others
_SO_PEERGROUPS = 59
_MOST_GROUPS = 256  # more do not fit into what Python asks for
_log = logging.getLogger(__name__)


class Peer(NamedTuple):
    """The process at the other end, as the kernel says. `groups`: all that its user is in."""

    pid: int
    uid: int
    groups: frozenset[int]


async def serve(
    socket_path: str,
    handlers: Mapping[str, Handler],
    admits: Callable[[Peer], bool] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` (by op) on `socket_path`; started once clients can connect.

    A handler gets the whole request; a GpufsError it raises becomes the reply, with its class's name
    as `kind`. Only root and the daemon's own user are answered, or with `admits` whom it admits; then
    the request has the asking Peer as `peer`. The socket's directory is made if
    need be; MountFailed when it is not safe to use. A socket that is there already is replaced.
    """
    if admits is not None and os.geteuid() == 0:
        make_public(os.path.dirname(socket_path))
        listener = _listen(socket_path, 0o666)
    else:
        make_private(os.path.dirname(socket_path))
        listener = _listen(socket_path, 0o600)
    mark = os.lstat(socket_path)
    slots = trio.Semaphore(_STRANGERS) if admits is not None else None

    async def answer(stream: trio.SocketStream) -> None:
        if slots is None:
            await answer_now(stream)
        else:
            async with slots:
                await answer_now(stream)

    async def answer_now(stream: trio.SocketStream) -> None:
        with trio.move_on_after(_PATIENCE_S) as scope:
            try:
                reply = await _reply_to(stream, scope, handlers, admits)
                scope.deadline = trio.current_time() + _PATIENCE_S
                await stream.send_all(reply + b"\n")
            except trio.BrokenResourceError:
                _log.debug("a control client left before its reply")

    try:
        task_status.started()
        await trio.serve_listeners(answer, [listener])
    finally:
        _unlink_if_ours(socket_path, mark)


async def _reply_to(
    stream: trio.SocketStream,
    scope: trio.CancelScope,
    handlers: Mapping[str, Handler],
    admits: Callable[[Peer], bool] | None,
) -> bytes:
    try:
        peer = _peer(stream.socket)
        if not (admits(peer) if admits is not None else peer.uid in (0, os.geteuid())):
            raise AccessDenied(f"this gpufs mount takes no orders from uid {peer.uid}")
        request = _parse(await _read_line(stream))
        if admits is not None:
            request["peer"] = peer
        handler = handlers.get(request["op"])
        if handler is None:
            raise UsageError(f"unknown request {request['op']!r}; known are {', '.join(sorted(handlers))}")
        scope.deadline = math.inf  # the work may be long; it is the client's to give up
        return json.dumps({"ok": True, "result": await handler(request)}).encode()
    except GpufsError as error:
        return _refusal(str(error), type(error))
    except trio.BrokenResourceError:
        raise
    except Exception as error:
        _log.exception("a control request failed")
        return _refusal(f"internal error: {error!r} (see the log)", GpufsError)


def _refusal(text: str, kind: type[GpufsError]) -> bytes:
    return json.dumps({"ok": False, "error": text, "kind": kind.__name__}).encode()


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await stream.receive_some(_MAX_LINE)
        line += piece
        if len(line) > _MAX_LINE:
            raise UsageError(f"the request is longer than {_MAX_LINE} bytes")
        if not piece:
            break
    return bytes(line)


def _parse(line: bytes) -> Request:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError("the request is not one line of JSON") from error
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise UsageError('the request must be an object with a text "op"')
    return request


def _peer(sock: trio.socket.SocketType) -> Peer:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    groups: tuple[int, ...] = ()
    with suppress(OSError):
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
        groups = struct.unpack(f"{len(packed) // 4}I", packed)
    return Peer(pid, uid, frozenset((gid, *groups)))


def _listen(path: str, mode: int) -> trio.SocketListener:
    """A listening socket, renamed into place: no client ever finds one that cannot answer."""
    temporary = f"{path}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(temporary)
        os.chmod(temporary, mode)
        sock.listen(64)
        os.rename(temporary, path)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _unlink_if_ours(path: str, mark: os.stat_result) -> None:
    """Remove the socket, unless a newer daemon has put its own in its place."""
    try:
        now = os.lstat(path)
        if (now.st_dev, now.st_ino) == (mark.st_dev, mark.st_ino):
            os.unlink(path)
    except FileNotFoundError:
        pass  # somebody cleaned the directory; nothing is left to remove
