"""The supervisor: mounts, owns /dev/fuse, and keeps the two processes behind the mount running.

It does nothing else, so that nothing else can end it. When one of the two dies, both are started anew
on a fresh socket pair and the kernel is asked to queue again what was not answered: programs notice a
pause and nothing more.
"""

from __future__ import annotations

import errno
import json
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
from dataclasses import dataclass, replace

from gpufs.control import paths
from gpufs.errors import GpufsError, MountFailed
from gpufs.fastpath.negotiation import LARGEST_READ
from gpufs.fastpath.opens import TABLE_SIZE
from gpufs.fastpath.task import Task
from gpufs.filesystem import kernel
from gpufs.handoff.report import FAILED, READY, report_to, setup_logging
from gpufs.mounting import mount, mount_as_user, open_device, unmount
from gpufs.options import MountConfig

PAIR_BUFFER = 8 << 20  # bytes in each direction of the socket pair; a reply of 1 MiB must fit
SHORT_LIFE = 1.0  # seconds; whoever dies sooner after a start would die again
SHORT_LIVES = 8  # so many of them in a row are a crash loop, and end the mount
BACKOFF = 0.05  # seconds before the second start in a row; doubled with each further one
START_PATIENCE = 90.0  # seconds a process has to become ready: the source's deadline and more
STOP_PATIENCE = 15.0  # seconds the filesystem process has to write its catalogue and end

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # <asm-generic/socket.h>

log = logging.getLogger("gpufs.supervisor")


class StartFailed(MountFailed):
    """A process could not be started; the message is its own."""


class Stopped(Exception):
    """We were told to stop while something was being started."""


@dataclass(slots=True)
class Lives:
    """The two processes of one life. `fastpath` is None until the tree is mounted."""

    filesystem: subprocess.Popen[bytes]
    fastpath: subprocess.Popen[bytes] | None
    task: Task
    pidfds: dict[int, str]


class Supervisor:
    """One mount from its beginning to its end."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._device_fd = -1
        self._table_fd = -1
        self._signals: list[int] = []
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._born = 0.0  # when the present life began
        self._short_lives = 0

    def run(self, ready: Callable[[], None]) -> int:
        """Mount, call `ready`, serve until unmounted. Raises GpufsError when it cannot be mounted."""
        self._listen_to_signals()
        self._table_fd = os.memfd_create("gpufs-opens", os.MFD_CLOEXEC)
        os.truncate(self._table_fd, TABLE_SIZE)
        lives = None
        try:
            lives = self._start_filesystem(resumed=False)
            self._mount()
            self._start_fastpath(lives)
        except BaseException:
            if lives is not None:
                self._end(lives)
            if self._device_fd >= 0:
                unmount(self._config.mountpoint, lazy=True)
            raise
        self._tune()
        ready()
        return self._keep_running(lives)

    def resume(self, device_fd: int, table_fd: int) -> int:
        """Take over a mounted tree from a predecessor."""
        self._listen_to_signals()
        self._device_fd, self._table_fd = device_fd, table_fd
        return self._keep_running(self._restart(None))

    # -- the life of the mount

    def _keep_running(self, lives: Lives | None) -> int:
        while lives is not None:
            who, status = self._wait(lives)
            if who == "signal":
                if self._signals.pop(0) == signal.SIGHUP:
                    self._upgrade(lives)
                self._detach()
                continue
            if who == "fastpath" and status == 0:
                log.info("unmounted")
                self._end(lives, patience=STOP_PATIENCE)
                return 0
            log.error("the %s process ended (%s); starting both anew", who, _describe(status))
            lives = self._restart(lives)
        return 1

    def _restart(self, lives: Lives | None) -> Lives | None:
        """Start both processes anew, again and again if need be; None when that was given up."""
        while True:
            if lives is not None:
                self._end(lives)
                lives = None
            self._short_lives = self._short_lives + 1 if time.monotonic() < self._born + SHORT_LIFE else 0
            if self._short_lives == SHORT_LIVES:
                where = self._config.mountpoint
                log.critical("%d crashes in a row: giving up and unmounting %s", SHORT_LIVES, where)
                unmount(where, lazy=True)
                return None
            if self._short_lives > 1:
                time.sleep(BACKOFF * 2 ** (self._short_lives - 1))
            try:
                lives = self._start_filesystem(resumed=True)
                self._start_fastpath(lives)
            except GpufsError as error:
                log.error("cannot start anew: %s", error)
                self._born = time.monotonic()
            except Stopped:
                self._detach()
                return None
            else:
                self._born = time.monotonic()
                return lives

    def _detach(self) -> None:
        """Unmount; what is in use stays readable for those who use it, and is served until they end."""
        where = self._config.mountpoint
        failure = unmount(where, lazy=False)
        if failure == os.strerror(errno.EBUSY):
            log.warning("%s is in use: detached, and served until the last user ends", where)
            failure = unmount(where, lazy=True)
        if failure is not None:
            log.error("cannot unmount %s: %s", where, failure)

    def _upgrade(self, lives: Lives) -> None:
        """Give the mount to a new supervisor in this process, which may be other code."""
        log.info("restarting in place")
        self._end(lives, patience=STOP_PATIENCE)
        for fd in (self._device_fd, self._table_fd):
            os.set_inheritable(fd, True)
        state = {"config": self._config.to_json(), "device_fd": self._device_fd, "table_fd": self._table_fd}
        os.execv(
            sys.executable, [sys.executable, "-P", "-m", "gpufs.supervisor", "--resume", json.dumps(state)]
        )

    # -- mounting

    def _mount(self) -> None:
        config = self._config
        shared = config.options.allow_other
        if os.geteuid() == 0:
            self._device_fd = open_device()
            try:
                mount(
                    self._device_fd,
                    config.source,
                    config.mountpoint,
                    allow_other=shared,
                    max_read=LARGEST_READ,
                )
            except MountFailed:
                os.close(self._device_fd)
                self._device_fd = -1
                raise
        else:
            self._device_fd = mount_as_user(
                config.source, config.mountpoint, allow_other=shared, max_read=LARGEST_READ
            )

    def _tune(self) -> None:
        if device := paths.device_of(self._config.mountpoint):
            kernel.tune(device)

    # -- the processes

    def _start_filesystem(self, *, resumed: bool) -> Lives:
        pair_near, pair_far = _socket_pair(PAIR_BUFFER)
        feed_near, feed_far = _socket_pair(PAIR_BUFFER)
        arguments = [str(pair_far.fileno()), str(feed_far.fileno()), str(int(resumed))]
        with pair_far, feed_far:
            process, answer = _start(
                "gpufs.service", arguments, self._config.to_json(), [pair_far.fileno(), feed_far.fileno()]
            )
        task = Task(
            config=self._config.to_json(),
            device_fd=self._device_fd,
            pair_fd=pair_near.detach(),
            feed_fd=feed_near.detach(),
            table_fd=self._table_fd,
            resumed=resumed,
            filesystem_pid=process.pid,
        )
        lives = Lives(process, None, task, {os.pidfd_open(process.pid): "filesystem"})
        try:
            self._await_ready(answer, process, "filesystem")
        except BaseException:
            self._end(lives)
            raise
        return lives

    def _start_fastpath(self, lives: Lives) -> None:
        task = replace(lives.task, device_fd=self._device_fd)
        fds = [task.device_fd, task.pair_fd, task.feed_fd, task.table_fd]
        process, answer = _start("gpufs.fastpath.process", [], task.to_json(), fds)
        lives.fastpath = process
        lives.pidfds[os.pidfd_open(process.pid)] = "fastpath"
        # Only the fast path may hold its ends: the other process sees by their closing that it died.
        os.close(task.pair_fd)
        os.close(task.feed_fd)
        lives.task = replace(task, pair_fd=-1, feed_fd=-1)
        try:
            self._await_ready(answer, process, "fast path")
        except BaseException:
            self._end(lives)
            raise

    def _await_ready(self, answer: int, process: subprocess.Popen[bytes], name: str) -> None:
        """Wait for a process's line. Raises StartFailed, or Stopped when a signal came meanwhile."""
        end = time.monotonic() + START_PATIENCE
        text = b""
        with os.fdopen(answer, "rb", buffering=0) as pipe:
            while not text.endswith(b"\n"):
                patience = max(0.0, end - time.monotonic())
                readable, _, _ = select.select([pipe.fileno(), self._wake_r], [], [], patience)
                if self._wake_r in readable and self._took_signals():
                    raise Stopped
                if pipe.fileno() in readable:
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
            raise StartFailed(
                f"the {name} process ended at its start ({_describe(process.wait())}); see the log"
            )

    def _wait(self, lives: Lives) -> tuple[str, int]:
        """Until a process ends or a signal comes: who, and the exit status."""
        while True:
            readable, _, _ = select.select([*lives.pidfds, self._wake_r], [], [])
            if self._wake_r in readable and self._took_signals():
                return "signal", 0
            # When both have ended, the fast path's status tells whether the tree was unmounted.
            ended = {lives.pidfds[fd] for fd in readable if fd in lives.pidfds}
            if "fastpath" in ended and lives.fastpath is not None:
                return "fastpath", lives.fastpath.wait()
            if ended:
                with suppress(subprocess.TimeoutExpired):
                    if lives.fastpath is not None and lives.fastpath.wait(0.2) == 0:
                        return "fastpath", 0
                return "filesystem", lives.filesystem.wait()

    def _end(self, lives: Lives, patience: float = 0.0) -> None:
        """Have both processes ended: the fast path at once, the other after it could write its catalogue."""
        if lives.fastpath is not None:
            lives.fastpath.kill()
            lives.fastpath.wait()
        if patience:
            lives.filesystem.terminate()
        else:
            lives.filesystem.kill()
        try:
            lives.filesystem.wait(patience or None)
        except subprocess.TimeoutExpired:
            log.warning("the filesystem process did not end within %.0f s: killed", patience)
            lives.filesystem.kill()
            lives.filesystem.wait()
        for fd in (*lives.pidfds, lives.task.pair_fd, lives.task.feed_fd):
            if fd >= 0:
                os.close(fd)
        lives.pidfds.clear()
        lives.task = replace(lives.task, pair_fd=-1, feed_fd=-1)

    # -- signals: noted here, acted on between other things

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w)

    def _took_signals(self) -> bool:
        with suppress(BlockingIOError):
            self._signals += os.read(self._wake_r, 64)
        self._signals = [n for n in self._signals if n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
        return bool(self._signals)


def _socket_pair(size: int) -> tuple[socket.socket, socket.socket]:
    """Two connected message sockets with room for `size` bytes, or as much as is allowed."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in pair:
        for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, size)
            except PermissionError:  # without CAP_NET_ADMIN net.core.wmem_max is the most
                sock.setsockopt(socket.SOL_SOCKET, plain, size)
    return pair


def _start(
    module: str, arguments: list[str], stdin: str, fds: list[int]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a module as a process of its own group; the process, and the pipe its answer comes from."""
    ready_r, ready_w = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(ready_w), *arguments],
            stdin=subprocess.PIPE,
            pass_fds=[ready_w, *fds],
            process_group=0,  # Ctrl-C at a terminal is for the supervisor alone
        )
    finally:
        os.close(ready_w)
    with suppress(BrokenPipeError):
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
    return process, ready_r


def _describe(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def run(config: MountConfig, ready: Callable[[], None]) -> int:
    """Mount and serve until unmounted, in this process and two of its own. Raises GpufsError."""
    return Supervisor(config).run(ready)


def main() -> int:
    """`python -m gpufs.supervisor READY_FD`, the configuration on stdin; or `--resume STATE`."""
    if sys.argv[1] == "--resume":
        state = json.loads(sys.argv[2])
        config = MountConfig.from_json(state["config"])
        setup_logging(config.options.log_level)
        return Supervisor(config).resume(state["device_fd"], state["table_fd"])
    config = MountConfig.from_json(sys.stdin.read())
    setup_logging(config.options.log_level)
    return report_to(int(sys.argv[1]), lambda ready: run(config, ready))


if __name__ == "__main__":
    sys.exit(main())
