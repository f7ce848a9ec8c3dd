"""Hints of a training job to the gpufs mount it reads from: docs/hints.md.

Needs nothing but the standard library: this file may be copied to where gpufs is not installed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

_PIECE = 60_000  # bytes of paths in one request, which may have 64 KiB
_PATIENCE = 5.0  # seconds for one request
_STARTING = 1.0  # seconds in which a daemon that has just mounted, or was restarted, begins to listen

_MOUNTINFO = "/proc/self/mountinfo"

_log = logging.getLogger("gpufs.hints")


def announce(
    mountpoint: str | bytes | os.PathLike[str],
    paths: Iterable[str | bytes | os.PathLike[str]],
    *,
    name: str = "",
) -> bool:
    """Tell the mount that `paths` will be read in this order; True when it took all of it.

    `mountpoint` is the mount or a directory in it, to which relative paths are relative. An order takes
    the place of the last one that this process announced with this `name`. Without a gpufs mount there
    nothing happens and False is returned: nothing but what `paths` itself raises is raised.
    """
    if isinstance(paths, str | bytes):  # each letter of it would be a path
        raise TypeError("paths is one path; give a list of them")
    try:
        heads, sockets = _find(os.fsdecode(mountpoint))
        if not sockets:
            _log.info("no gpufs mount at %s: nothing is announced", os.fsdecode(mountpoint))
            return False
    except OSError as error:
        _log.warning("nothing is announced: %s", error)
        return False
    begin, all_taken = True, True
    for piece, count in _pieces(_in_tree(heads, paths)):
        try:
            taken = _send(sockets, name, piece, begin)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("not announced to gpufs, or not all of it: %s", error)
            return False
        begin = False
        all_taken = all_taken and taken == count
        if not taken:
            break
    return all_taken


def _in_tree(heads: list[tuple[str, str]], paths: Iterable[str | bytes | os.PathLike[str]]) -> Iterator[str]:
    """Each path as the tree has it; empty when it is elsewhere."""
    for path in paths:
        text = os.fsdecode(path)
        if "/." in text or "//" in text or text.startswith("."):
            text = os.path.normpath(text)
        if not text.startswith("/"):
            text = heads[0][0] + text
        yield next((tree + text[len(head) :] for head, tree in heads if text.startswith(head)), "")


def _pieces(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """JSON texts of lists of paths, and how many are in each; one at least: an order may be empty."""
    quoted: list[str] = []
    size, first = 0, True
    for path in paths:
        text = json.dumps(path)
        if size + len(text) > _PIECE and quoted:
            yield f"[{','.join(quoted)}]", len(quoted)
            quoted, size, first = [], 0, False
        quoted.append(text)
        size += len(text) + 1
    if quoted or first:
        yield f"[{','.join(quoted)}]", len(quoted)


def _send(sockets: list[tuple[str, int]], name: str, piece: str, begin: bool) -> int:
    """One request: how many of its paths were taken."""
    head = json.dumps({"op": "announce", "name": name, "begin": begin})
    with _connected(sockets) as sock:
        with suppress(BrokenPipeError):  # who is not permitted is told so before he has said anything
            sock.sendall(f'{head[:-1]}, "paths": {piece}}}\n'.encode())
        with sock.makefile("rb") as replies:
            reply = json.loads(replies.readline())
    if not reply["ok"]:
        raise ValueError(reply["error"])
    return int(reply["result"]["taken"])


def _connected(sockets: list[tuple[str, int]]) -> socket.socket:
    give_up = time.monotonic() + _STARTING
    while True:
        try:
            return _connected_now(sockets)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > give_up or not any(os.path.isdir(os.path.dirname(s)) for s, _ in sockets):
                raise
        time.sleep(0.02)


def _connected_now(sockets: list[tuple[str, int]]) -> socket.socket:
    """To the daemon of the user who made the mount, and nobody else."""
    failure: OSError = FileNotFoundError("no daemon takes hints; it may be another user's")
    for path, owner in sockets:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(_PATIENCE)
            sock.connect(path)
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid == owner:
                return sock
            failure = PermissionError(f"{path} is not of uid {owner}")
        except OSError as error:
            failure = error
        sock.close()
    raise failure


def _find(given: str) -> tuple[list[tuple[str, str]], list[tuple[str, int]]]:
    """What paths may begin with, and what they begin with in the tree instead; where its daemon may listen.

    Nowhere when the directory is not in a gpufs mount.
    """
    directory = os.path.realpath(given)
    best, inside = "", ""
    sockets: list[tuple[str, int]] = []
    with open(_MOUNTINFO, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    for line in lines:
        # proc_pid_mountinfo(5): optional fields end with "-", then type, source, super options.
        fields = line.split(b" ")
        dash = fields.index(b"-", 6)
        point = _unescape(fields[4])
        if len(point) < len(best) or not (directory + "/").startswith(point.rstrip("/") + "/"):
            continue
        best, inside, sockets = point, _unescape(fields[3]).strip("/"), []
        if fields[dash + 1] == b"fuse.gpufs":
            found = re.search(rb"(?:^|,)user_id=([0-9]+)", fields[dash + 3])
            owner = int(found[1]) if found else 0
            sockets = [(path, owner) for path in _socket_paths(fields[2].decode(), owner)]
    inside = f"{inside}/" if inside else ""
    base = inside + f"{directory[len(best) :].strip('/')}/".lstrip("/")
    head = os.path.abspath(given).rstrip("/") + "/"
    return [(head, base), (f"{directory}/", base), (best.rstrip("/") + "/", inside)], sockets


def _socket_paths(device: str, owner: int) -> list[str]:
    """As gpufs.control.paths.hints_path() chooses one of them."""
    if owner == 0:
        return [f"/run/gpufs-hints/{device}.sock"]
    directories = [os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{owner}"]
    own = [f"{directory}/gpufs" for directory in directories if os.path.isabs(directory)]
    return [f"{directory}/hints-{device}.sock" for directory in [*own, f"/tmp/gpufs-{owner}"]]


def _unescape(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field))
