"""The command's end of the control socket: ask the daemon of a mount, and learn its pid."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpufs import errors
from gpufs.control.paths import Mount, all_mounts, gpufs_mounts, socket_path
from gpufs.errors import AccessDenied, DeadlineExceeded, GpufsError, MountFailed


class NobodyListens(MountFailed):
    """No daemon is behind the control socket."""


def call(mount: Mount, op: str, *, timeout: float = 30.0, **arguments: Any) -> dict[str, Any]:
    """Send one request to the daemon of `mount` and return its result.

    Raises NobodyListens, DeadlineExceeded after `timeout` seconds, AccessDenied when the socket is
    another user's, and what the daemon's handler raised, as the same class of gpufs.errors.
    """
    give_up = time.monotonic() + timeout
    with _connected(mount, timeout) as sock:
        # A daemon that refuses before it has read everything says why in its reply.
        with suppress(BrokenPipeError):
            sock.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
        reply = _read_reply(sock, mount, give_up)
    if reply.get("ok"):
        return dict(reply["result"])
    raise _error_class(str(reply.get("kind")))(reply.get("error"))


def daemon_pid(mount: Mount) -> int:
    """The pid of the process that serves the control socket. NobodyListens when there is none."""
    with _connected(mount, 5.0) as sock:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


@contextmanager
def _connected(mount: Mount, timeout: float) -> Iterator[socket.socket]:
    where = mount.mountpoint
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(socket_path(where, mount.owner))
            yield sock
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NobodyListens(_nobody_listens(mount)) from error
        except ConnectionError as error:
            raise NobodyListens(f"the gpufs daemon of {where} went away without an answer") from error
        except PermissionError as error:
            raise AccessDenied(
                f"{where} was mounted by uid {mount.owner}; ask as that user or root"
            ) from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"the gpufs daemon of {where} gave no answer in {timeout:g} s") from error


def _nobody_listens(mount: Mount) -> str:
    where = mount.mountpoint
    for other in gpufs_mounts(all_mounts()):
        if other.device == mount.device and other.mountpoint != where:
            return f"{where} shows the tree that is mounted on {other.mountpoint} too; name that"
    return (
        f"no gpufs daemon answers for {where}: it is starting, stopping or dead, or this is a bind mount of "
        f"a tree that was unmounted elsewhere; if it stays so, take it away with `gpufs umount {where}`"
    )


def _read_reply(sock: socket.socket, mount: Mount, give_up: float) -> dict[str, Any]:
    pieces: list[bytes] = []
    while not (pieces and pieces[-1].endswith(b"\n")):
        left = give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        piece = sock.recv(1 << 16)
        if not piece:
            raise NobodyListens(f"the gpufs daemon of {mount.mountpoint} went away without an answer")
        pieces.append(piece)
    reply = json.loads(b"".join(pieces))
    return reply if isinstance(reply, dict) else {}


def _error_class(kind: str) -> type[GpufsError]:
    found = getattr(errors, kind, GpufsError)
    return found if isinstance(found, type) and issubclass(found, GpufsError) else GpufsError
