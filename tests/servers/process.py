"""Server processes of the tests: free ports, start, wait until ready, and a sure end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nobody on loopback listens on now, below the ephemeral range.

    Ephemeral ports are left out: a client connection could take one before the server binds it. So
    could another test worker: each has a part of the range of its own.
    """
    found: list[int] = []
    held: list[socket.socket] = []
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = 15000 + worker % 8 * 2000 + (os.getpid() * 37 + time.monotonic_ns() // 1000) % 1000
    try:
        for port in range(start, start + 1000):
            if len(found) == count:
                return found
            s = socket.socket()
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                s.close()
                continue
            held.append(s)
            found.append(port)
    finally:
        for s in held:
            s.close()
    raise RuntimeError("no free ports")


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    ready: Callable[[], bool],
    env: dict[str, str] | None = None,
    timeout: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in a process group of its own until the block ends (or this process dies)."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env=env,
            cwd=log.parent,
        )
    try:
        end = time.monotonic() + timeout
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                tail = log.read_bytes()[-2000:].decode(errors="replace")
                raise RuntimeError(f"{command[0]} did not start (exit {process.returncode}):\n{tail}")
            time.sleep(0.1)
        yield process
    finally:
        # their data is thrown away: no time is spent on a clean end
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
