"""The two processes behind a mount: started together, watched together, ended together."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from gpufs.errors import MountFailed
from gpufs.fastpath.task import Task
from gpufs.handoff.report import FAILED, READY
from gpufs.options import MountConfig
from gpufs.watchdog import EVERY, Watchdog

PAIR_BUFFER = 8 << 20  # bytes in each direction of the socket pair: many replies
START_PATIENCE = 90.0  # seconds a process has to become ready: the source's deadline and more

MODULES = "gpufs.service", "gpufs.fastpath.process"  # the filesystem process, the fast path

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # <asm-generic/socket.h>
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("gpufs.supervisor")


class StartFailed(MountFailed):
    """A process could not be started; the message is its own."""


class Stopped(Exception):
    """We were told to stop while something was being started."""


class Signals:
    """Signals are noted when they come, and acted on between other things: a descriptor to select on."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.stops = 0  # SIGTERM and SIGINT not acted on yet
        self.restart = False  # SIGHUP came

    def listen(self) -> None:
        for number in _HANDLED:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

    def hold_back(self) -> None:
        """Keep further signals waiting, over an exec too, until listen()."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)

    def fileno(self) -> int:
        return self._read

    def take(self) -> bool:
        """Note what has come; True when there is something to act on."""
        with suppress(BlockingIOError):
            for number in os.read(self._read, 64):
                self.stops += number in (signal.SIGTERM, signal.SIGINT)
                self.restart |= number == signal.SIGHUP
        return bool(self.stops or self.restart)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped when told to stop meanwhile."""
        end = time.monotonic() + seconds
        while not self.stops and (left := end - time.monotonic()) > 0:
            if select.select([self], [], [], left)[0]:
                self.take()
        if self.stops:
            raise Stopped


class Lives:
    """One life of the two processes. Whoever makes it must end() it, whatever happens."""

    def __init__(self, config: MountConfig, table_fd: int, signals: Signals, *, resumed: bool) -> None:
        """Start the filesystem process. `resumed`: the kernel knows inodes of an earlier life already."""
        self._config = config
        self._signals = signals
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pidfds: dict[int, str] = {}
        self._answers: dict[str, int] = {}
        pair_near, pair_far = _socket_pair()
        feed_near, feed_far = _socket_pair()
        self._task = Task(
            config=config.to_json(),
            device_fd=-1,
            pair_fd=pair_near.detach(),
            feed_fd=feed_near.detach(),
            table_fd=table_fd,
            resumed=resumed,
            filesystem_pid=0,
        )
        with pair_far, feed_far:
            fds = [pair_far.fileno(), feed_far.fileno()]
            arguments = [*map(str, fds), str(int(resumed))]
            try:
                self._start("filesystem", MODULES[0], arguments, config.to_json(), fds)
            except StartFailed:
                self.end()
                raise

    def add_fastpath(self, device_fd: int) -> None:
        """Start the fast path process, once there is a mounted connection."""
        pid = self._processes["filesystem"].pid
        task = replace(self._task, device_fd=device_fd, filesystem_pid=pid)
        fds = [task.device_fd, task.pair_fd, task.feed_fd, task.table_fd]
        self._start("fast path", MODULES[1], [], task.to_json(), fds)
        # Only the fast path may hold its ends: the other process sees by their closing that it died.
        self._close_ends()

    def await_ready(self) -> None:
        """Wait until all that was started is ready. Raises StartFailed, and Stopped on a signal to stop."""
        for name in list(self._answers):
            self._await(name, self._answers.pop(name))

    def wait(self, alive: Callable[[], None]) -> tuple[str, int] | None:
        """Until a process ends: which, and its exit status; or until a signal comes: None.

        A filesystem process that hangs is killed. `alive` is called every some seconds.
        """
        watchdog = Watchdog(self._config.mountpoint)
        while True:
            if self._signals.take():
                return None
            alive()
            readable, _, _ = select.select([*self._pidfds, self._signals.fileno()], [], [], EVERY)
            if not readable and watchdog.hangs(self._processes["filesystem"].pid):
                log.error("the filesystem process has given no answer for a long time: killed")
                self._processes["filesystem"].kill()
            ended = {self._pidfds[fd] for fd in readable if fd in self._pidfds}
            if not ended:
                continue
            # When both have ended, the fast path's status tells whether the tree was unmounted.
            filesystem, fastpath = self._processes["filesystem"], self._processes["fast path"]
            if "fast path" in ended:
                return "fast path", fastpath.wait()
            with suppress(subprocess.TimeoutExpired):
                if fastpath.wait(0.2) == 0:
                    return "fast path", 0
            return "filesystem", filesystem.wait()

    def end(self, patience: float = 0.0) -> bool:
        """Have both ended: the fast path at once, the other after `patience` seconds to put things away.

        False when that was not enough.
        """
        self._close_ends()
        in_time = True
        fastpath, filesystem = self._processes.get("fast path"), self._processes.get("filesystem")
        if fastpath is not None:
            fastpath.kill()
            fastpath.wait()
        if filesystem is not None:
            if patience:
                filesystem.terminate()
            else:
                filesystem.kill()
            try:
                filesystem.wait(patience or None)
            except subprocess.TimeoutExpired:
                in_time = False
                filesystem.kill()
                filesystem.wait()
        for fd in (*self._pidfds, *self._answers.values()):
            os.close(fd)
        self._pidfds.clear()
        self._answers.clear()
        return in_time

    def _close_ends(self) -> None:
        for fd in (self._task.pair_fd, self._task.feed_fd):
            if fd >= 0:
                os.close(fd)
        self._task = replace(self._task, pair_fd=-1, feed_fd=-1)

    def _start(self, name: str, module: str, arguments: list[str], stdin: str, fds: list[int]) -> None:
        """Start a module as a process of its own group. Raises StartFailed."""
        self._answers[name], ready_w = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(ready_w), *arguments],
                stdin=subprocess.PIPE,
                pass_fds=[ready_w, *fds],
                process_group=0,  # Ctrl-C at a terminal is for the supervisor alone
            )
        except OSError as error:
            raise StartFailed(f"cannot start the {name} process: {error}") from error
        finally:
            os.close(ready_w)
        self._processes[name] = process
        self._pidfds[os.pidfd_open(process.pid)] = name
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin.encode())

    def _await(self, name: str, answer: int) -> None:
        end = time.monotonic() + START_PATIENCE
        text = b""
        with os.fdopen(answer, "rb", buffering=0) as pipe:
            while not text.endswith(b"\n"):
                patience = max(0.0, end - time.monotonic())
                readable, _, _ = select.select([answer, self._signals.fileno()], [], [], patience)
                if self._signals.take() and self._signals.stops:
                    raise Stopped
                if answer in readable:
                    piece = pipe.read(4096)
                    if not piece:
                        break
                    text += piece
                elif not readable:
                    raise StartFailed(f"the {name} process was not ready within {START_PATIENCE:.0f} s")
        line = text.decode(errors="replace").strip()
        if line.startswith(FAILED):
            raise StartFailed(line.removeprefix(FAILED))
        if line != READY:
            status = describe(self._processes[name].wait())
            raise StartFailed(f"the {name} process ended at its start ({status}); see the log")


def describe(status: int) -> str:
    """An exit status as Popen gives it, in words."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected message sockets with room for PAIR_BUFFER bytes, or as much as is allowed."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in pair:
        for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, PAIR_BUFFER)
            except PermissionError:  # without CAP_NET_ADMIN net.core.wmem_max is the most
                sock.setsockopt(socket.SOL_SOCKET, plain, PAIR_BUFFER)
    return pair
