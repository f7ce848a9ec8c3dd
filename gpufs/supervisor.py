"""The supervisor: mounts, owns /dev/fuse, and keeps the two processes behind the mount running.

It does nothing else, so that nothing else can end it. When one of the two dies, both are started anew
on a fresh socket pair and the kernel is asked to queue again what was not answered: programs notice a
pause and nothing more.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import xxhash

from gpufs import __version__
from gpufs.control import paths
from gpufs.errors import GpufsError, MountFailed
from gpufs.fastpath.negotiation import LARGEST_READ
from gpufs.fastpath.opens import TABLE_SIZE
from gpufs.filesystem import kernel
from gpufs.handoff.report import NOT_RESTARTED, report_to
from gpufs.lives import MODULES, Lives, Signals, Stopped, describe
from gpufs.logs import setup_logging
from gpufs.mounting import mount, mount_as_user, open_device, shown_source, unmount
from gpufs.options import MountConfig
from gpufs.systemd import Systemd

SHORT_LIFE = 1.0  # seconds; whoever dies sooner after a start would die again
SHORT_LIVES = 8  # so many of them in a row are a crash loop, and end the mount
BACKOFF = 0.05  # seconds before the third start in a row; doubled with each further one
STOP_PATIENCE = 15.0  # seconds the filesystem process has to write its catalogue and end
CHECK_PATIENCE = 30.0  # seconds new code has to be imported before it takes over
FORMAT = 1  # of what a successor takes over: the table of open files, file handles, inode numbers

log = logging.getLogger("gpufs.supervisor")


@dataclass(frozen=True, slots=True)
class State:
    """What a successor in the same process needs to know."""

    format: int
    config: str
    device_fd: int
    table_fd: int
    stored: bool  # whether systemd keeps the descriptors too

    def to_json(self) -> str:
        return json.dumps([self.format, self.config, self.device_fd, self.table_fd, self.stored])

    @classmethod
    def from_json(cls, text: str) -> State:
        return cls(*json.loads(text))


class Supervisor:
    """One mount from its beginning to its end."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._signals = Signals()
        self._systemd = Systemd(os.environ, _identity(config))
        self._device_fd = -1
        self._table_fd = -1
        self._mount_device: str | None = None  # as mountinfo names it
        self._born = 0.0  # when the present life began
        self._short_lives = 0

    def run(self, ready: Callable[[], None]) -> int:
        """Mount, call `ready`, serve until unmounted. Raises GpufsError when it cannot be mounted."""
        self._signals.listen()
        kept, there = self._systemd.take(os.environ), self._mounted_here()
        try:
            if kept is not None and there == shown_source(self._config.source):
                self._device_fd, self._table_fd = kept.device_fd, kept.table_fd
                return self._take_over(ready)
            if there is not None and self._systemd.handed_over:
                log.warning("what was mounted here had other options, or has died: mounting anew")
                unmount(self._config.mountpoint, lazy=True)
            return self._begin(ready)
        except Stopped:
            log.info("told to stop while starting")
            return 0

    def resume(self, state: State) -> int:
        """Go on as the successor of a supervisor that has become this process."""
        self._signals.listen()
        for fd in (state.device_fd, state.table_fd):
            os.set_inheritable(fd, False)
        self._device_fd, self._table_fd = state.device_fd, state.table_fd
        self._systemd.stored = state.stored
        self._mount_device = paths.device_of(self._config.mountpoint)
        log.info("gpufs %s takes over the mount on %s", __version__, self._config.mountpoint)
        try:
            return self._keep_running(self._restart())
        except Stopped:
            return 0

    # -- the life of the mount

    def _begin(self, ready: Callable[[], None]) -> int:
        self._table_fd = os.memfd_create("gpufs-opens", os.MFD_CLOEXEC)
        os.truncate(self._table_fd, TABLE_SIZE)
        lives = Lives(self._config, self._table_fd, self._signals, resumed=False)
        try:
            lives.await_ready()
            self._mount()
            lives.add_fastpath(self._device_fd)
            lives.await_ready()
        except BaseException:
            lives.end()
            if self._device_fd >= 0:
                unmount(self._config.mountpoint, lazy=True)
            raise
        self._mount_device = paths.device_of(self._config.mountpoint)
        if self._mount_device is not None:
            kernel.tune(self._mount_device, fast_path=True)
        self._systemd.store(self._device_fd, self._table_fd)
        return self._serve(lives, ready)

    def _take_over(self, ready: Callable[[], None]) -> int:
        """Go on with a mount whose supervisor has ended."""
        self._mount_device = paths.device_of(self._config.mountpoint)
        log.info("taking over the mount on %s", self._config.mountpoint)
        _end_fastpaths_of(self._table_fd)
        return self._serve(self._restart(), ready)

    def _serve(self, lives: Lives | None, ready: Callable[[], None]) -> int:
        ready()
        log.info("%s is mounted on %s (gpufs %s)", self._config.source, self._config.mountpoint, __version__)
        self._systemd.notify("READY=1", f"STATUS={self._config.source} on {self._config.mountpoint}")
        return self._keep_running(lives)

    def _keep_running(self, lives: Lives | None) -> int:
        while lives is not None:
            ended = lives.wait(self._systemd.alive)
            if ended is None:
                if self._signals.stops:
                    if self._stop(lives):
                        return 0
                else:
                    self._upgrade(lives)
                continue
            who, status = ended
            if (who, status) == ("fast path", 0):
                log.info("unmounted")
                self._systemd.notify("STOPPING=1")
                self._put_away(lives)
                return 0
            log.error("the %s process ended (%s); starting both anew", who, describe(status))
            lives.end()
            lives = self._restart()
        return 1

    def _restart(self) -> Lives | None:
        """Start both processes, again and again if need be; None when that was given up."""
        began = time.monotonic()
        while True:
            self._short_lives = self._short_lives + 1 if time.monotonic() < self._born + SHORT_LIFE else 0
            if self._short_lives == SHORT_LIVES:
                where = self._config.mountpoint
                log.critical("%d crashes in a row: giving up and unmounting %s", SHORT_LIVES, where)
                self._abandon()
                return None
            lives = None
            try:
                if self._short_lives > 1:
                    self._signals.pause(BACKOFF * 2 ** (self._short_lives - 2))
                lives = Lives(self._config, self._table_fd, self._signals, resumed=True)
                lives.add_fastpath(self._device_fd)
                lives.await_ready()
            except GpufsError as error:
                log.error("cannot start anew: %s", error)
                if lives is not None:
                    lives.end()
                self._born = time.monotonic()
            except Stopped:
                if lives is not None:
                    lives.end()
                if not self._systemd.stored:
                    log.warning("told to stop while nothing runs: unmounting %s", self._config.mountpoint)
                    self._abandon()
                raise
            else:
                self._born = time.monotonic()
                log.info("both processes run again after %.1f s", self._born - began)
                return lives

    def _stop(self, lives: Lives) -> bool:
        """Act on a signal to stop; True when this process is to end."""
        where = self._config.mountpoint
        self._signals.stops -= 1
        self._systemd.notify("STOPPING=1")
        attached = self._mount_device is not None and paths.device_of(where) == self._mount_device
        if attached and self._systemd.stored:
            log.info("leaving the mount on %s to the next supervisor", where)
            self._put_away(lives)
            return True
        if not attached:
            log.warning("told to stop once more: those who still use the tree lose it now")
            self._put_away(lives)
            return True
        failure = unmount(where, lazy=False)
        if failure == os.strerror(errno.EBUSY):
            log.warning("%s is in use: detached, and served until the last user ends", where)
            self._systemd.notify(f"STATUS={where} is detached, and served until the last user ends")
            failure = unmount(where, lazy=True)
        if failure is not None:
            log.error("cannot unmount %s: %s", where, failure)
        return False  # the end of the fast path tells when the last user has gone

    def _put_away(self, lives: Lives) -> None:
        if not lives.end(STOP_PATIENCE):
            log.warning("the filesystem process did not end within %.0f s: killed", STOP_PATIENCE)

    def _abandon(self) -> None:
        """Unmount, with nobody left to serve."""
        where = self._config.mountpoint
        with suppress(FileNotFoundError):  # a killed filesystem process leaves its control socket
            os.unlink(paths.socket_path(where, os.geteuid()))
        if (failure := unmount(where, lazy=True)) is not None:
            log.error("cannot unmount %s: %s", where, failure)

    def _upgrade(self, lives: Lives) -> None:
        """Give the mount to a new supervisor in this process, which may be other code."""
        self._signals.restart = False
        state = State(FORMAT, self._config.to_json(), self._device_fd, self._table_fd, self._systemd.stored)
        command = [sys.executable, "-P", "-m", "gpufs.supervisor"]
        try:
            checked = subprocess.run(
                [*command, "--check", state.to_json()],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CHECK_PATIENCE,
            )
            trouble = ""
            if checked.returncode:
                trouble = checked.stderr.strip().rpartition("\n")[2] or describe(checked.returncode)
        except (OSError, subprocess.TimeoutExpired) as error:
            trouble = str(error)
        if trouble:
            log.error("%s%s", NOT_RESTARTED, trouble)
            return
        log.info("restarting in place, the code until now was gpufs %s", __version__)
        self._signals.hold_back()
        self._put_away(lives)
        for fd in (self._device_fd, self._table_fd):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, [*command, "--resume", state.to_json()])

    # -- mounting

    def _mounted_here(self) -> str | None:
        """What the mount table names as the source of the gpufs tree on our mount point, if one is there."""
        known = paths.gpufs_mounts(paths.all_mounts())
        return next((m.source for m in known if m.mountpoint == self._config.mountpoint), None)

    def _mount(self) -> None:
        source, where = self._config.source, self._config.mountpoint
        shared = self._config.options.allow_other
        if os.geteuid() != 0:
            self._device_fd = mount_as_user(source, where, allow_other=shared, max_read=LARGEST_READ)
            return
        device_fd = open_device()
        try:
            mount(device_fd, source, where, allow_other=shared, max_read=LARGEST_READ)
        except MountFailed:
            os.close(device_fd)
            raise
        self._device_fd = device_fd


def _identity(config: MountConfig) -> str:
    """A name for all that the kernel has been told and keeps: another identity needs a mount of its own."""
    options = config.options
    told = [FORMAT, config.source, config.mountpoint, options.endpoint_url, str(options.cache_dir)]
    told += [options.uid, options.gid, options.file_mode, options.dir_mode, options.allow_other]
    return xxhash.xxh3_64_hexdigest(json.dumps(told).encode())


def _end_fastpaths_of(table_fd: int) -> None:
    """End the fast path process of a killed supervisor: only one may read the device.

    Its filesystem process ends by itself then.
    """
    table = os.fstat(table_fd)
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            pidfd = os.pidfd_open(pid)
            try:
                if _is_fastpath_of(table, pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [], STOP_PATIENCE)
            finally:
                os.close(pidfd)


def _is_fastpath_of(table: os.stat_result, pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"gpufs.fastpath.process" not in file.read():
            return False
    links = f"/proc/{pid}/fd"
    return any(os.path.samestat(os.stat(f"{links}/{fd}"), table) for fd in os.listdir(links))


def _check(state: State) -> int:
    """Whether this code can take over; stderr says why not."""
    if state.format != FORMAT:
        print(
            f"what is mounted has format {state.format}, this is {FORMAT}; unmount and mount it again",
            file=sys.stderr,
        )
        return 1
    MountConfig.from_json(state.config)
    for module in MODULES:
        importlib.import_module(module)
    return 0


def run(config: MountConfig, ready: Callable[[], None]) -> int:
    """Mount and serve until unmounted, in this process and two of its own. Raises GpufsError."""
    return Supervisor(config).run(ready)


def main() -> int:
    """`python -m gpufs.supervisor READY_FD` with a configuration on stdin, or `--resume`, `--check STATE`."""
    if sys.argv[1] == "--check":
        return _check(State.from_json(sys.argv[2]))
    if sys.argv[1] == "--resume":
        state = State.from_json(sys.argv[2])
        config = MountConfig.from_json(state.config)
        setup_logging(config.options.log_level, config.options.log_format)
        return Supervisor(config).resume(state)
    document = sys.stdin.read()
    if not document:  # whoever started this was ended before it could say what to do
        return 1
    config = MountConfig.from_json(document)
    setup_logging(config.options.log_level, config.options.log_format)
    return report_to(int(sys.argv[1]), lambda ready: run(config, ready))


if __name__ == "__main__":
    sys.exit(main())
