"""The filesystem process's end of the fetch process: starting it, asking it, starting it again."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from gpufs.errors import DeadlineExceeded, GpufsError, RemoteFailed
from gpufs.fetch.messages import (
    MESSAGE_SIZE,
    NOBODY,
    NOTHING,
    Named,
    Through,
    Wanted,
    pack_request,
    unpack_answer,
)
from gpufs.fetch.page import SharedPage

END_PATIENCE = 5.0  # seconds the process has to put things away
PATIENCE = 75.0  # seconds for an object: a source that is silent takes the deadline of 60 to fail
SETTLE_PATIENCE = 2.0  # seconds
SHORT_LIFE = 5.0  # seconds
PAUSE, MOST_PAUSE = 0.1, 5.0  # seconds before it is started again; doubled with each short life
MOST_TRIES = 5  # processes that may end over one request

log = logging.getLogger("gpufs.fetch")


class FetchProcess:
    """Whole objects, fetched by a process of their own. Lives in the trio thread; close() after its end.

    When the process dies another one takes over what was asked of it.
    """

    def __init__(self, config: str, page: SharedPage) -> None:
        """`config`: the mount's, as MountConfig.to_json() gives it."""
        self._config = config
        self._page = page
        self._near, self._far = _socket_pair()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: dict[int, _Request] = {}
        self._last = 0
        self._heard = -math.inf  # when the last answer came
        self._sending = trio.Lock()

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def object(self, wanted: Wanted) -> int:
        """A descriptor of the whole object, the caller's to close. Raises what fetching raises."""
        began = trio.current_time()
        with trio.move_on_after(PATIENCE):
            request = await self._ask(wanted)
            if request.error is not None:
                raise request.error
            if not request.fds:  # the kernel could not give us what came with the answer
                raise RemoteFailed("too many open files; raise the limit (ulimit -n)")
            return request.fds[0]
        if self._process is not None and self._heard < began:
            log.error("the fetch process has given no answer for %.0f s: it is killed", PATIENCE)
            self._process.kill()
        path = os.fsdecode(wanted.ref.path)
        raise DeadlineExceeded(f"{path}: the fetch process gave no answer within {PATIENCE:.0f} s")

    async def ahead(
        self, inodes: Sequence[int], at_once: int, soon: int = 0
    ) -> tuple[Through, GpufsError | None]:
        """Have the objects of small files in the cache, as far as they fit; tells the first error too.

        MOST_NAMED inodes at most. `soon`: the number of an order they are next in; then they come before all
        others that are wanted in advance, and are kept for one use when there is no room. Raises when the
        process does not answer for them.
        """
        request = await self._ask(Named(at_once, tuple(inodes), soon))
        if request.error is not None and not request.through.failed:
            raise request.error
        return request.through, request.error

    async def settle(self) -> None:
        """Have all that was fetched so far seen in the cache's catalogue by other processes.

        A process that stands still is not waited for.
        """
        if self._process is not None:
            with trio.move_on_after(SETTLE_PATIENCE):
                request = await self._ask(None)
                if request.error is not None:
                    raise request.error

    async def run(self, died: Callable[[], None]) -> None:
        """Keep the process running and take its answers, for ever. `died` is called when it has ended."""
        short = 0  # lives in a row that were short
        while True:
            began = trio.current_time()
            try:
                self._process = await trio.to_thread.run_sync(self._start)
            except OSError as error:
                log.error("the fetch process cannot be started: %s", error)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_again)
                    await self._take_answers()
                    nursery.cancel_scope.cancel()
                status = await trio.to_thread.run_sync(self._process.wait)
                log.warning("the fetch process ended (status %d) and is started again", status)
                self._process = None
                died()
            trio.lowlevel.notify_closing(self._near)
            self._near.close()
            self._near, self._far = _socket_pair()
            for number, request in list(self._requests.items()):
                request.tries += 1
                if request.tries == MOST_TRIES and request.wanted is not None:
                    failure = RemoteFailed(
                        f"{_named(request.wanted)}: {MOST_TRIES} processes ended, or did not start, "
                        "over it; see the log"
                    )
                    self._finish(number, [], failure, NOTHING)
            short = short + 1 if trio.current_time() - began < SHORT_LIFE else 0
            await trio.sleep(min(PAUSE * 2**short, MOST_PAUSE))

    def close(self) -> None:
        """End the process; it gives up what it was at."""
        self._near.close()
        self._far.close()
        if self._process is not None:
            try:
                self._process.wait(END_PATIENCE)
            except subprocess.TimeoutExpired:
                log.warning("the fetch process does not end: it is killed")
                self._process.kill()
                self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._far as far:
            process = subprocess.Popen(
                # -P: what lies in the current directory must not be imported.
                [sys.executable, "-P", "-m", "gpufs.fetch.process", str(far.fileno()), str(self._page.fd)],
                stdin=subprocess.PIPE,
                pass_fds=[far.fileno(), self._page.fd],
                process_group=0,  # signals from a terminal are for its parent, with which it ends
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(self._config.encode())
        return process

    async def _ask(self, wanted: Wanted | Named | None) -> _Request:
        """The request with its answer."""
        self._last = number = self._last + 1
        request = self._requests[number] = _Request(wanted)
        try:
            await self._send(pack_request(number, wanted))
            await request.answered.wait()
        except BaseException:
            self._requests.pop(number, None)
            _close(request.fds)
            if isinstance(wanted, Named):
                with suppress(OSError):
                    self._near.send(pack_request(number, NOBODY))
            raise
        return request

    async def _send_again(self) -> None:
        """To a new process, what the ended ones have not answered; more of it than the socket may hold."""
        for number, request in list(self._requests.items()):
            if request.tries and number in self._requests:  # else it was sent to the new one already
                await self._send(pack_request(number, request.wanted))

    async def _send(self, message: bytes) -> None:
        """Does nothing when the process has died: run() has all sent again that was not answered."""
        near = self._near
        with suppress(OSError, trio.ClosedResourceError):
            try:
                near.send(message)
            except BlockingIOError:
                async with self._sending:
                    while near is self._near:
                        await trio.lowlevel.wait_writable(near)
                        with suppress(BlockingIOError):  # others have been faster
                            near.send(message)
                            return

    async def _take_answers(self) -> None:
        """Until the process ends."""
        while True:
            await trio.lowlevel.wait_readable(self._near)
            # ConnectionResetError: it has died with requests unread. What it answered before comes next.
            with suppress(BlockingIOError, ConnectionResetError):
                while True:
                    message, fds, _, _ = socket.recv_fds(self._near, MESSAGE_SIZE, 1, socket.MSG_CMSG_CLOEXEC)
                    if not message:
                        return
                    number, error, through = unpack_answer(message)
                    self._heard = trio.current_time()
                    self._finish(number, fds, error, through)

    def _finish(self, number: int, fds: list[int], error: GpufsError | None, through: Through) -> None:
        request = self._requests.pop(number, None)
        if request is None:  # who asked was cancelled
            _close(fds)
            return
        request.fds, request.error, request.through = fds, error, through
        request.answered.set()


class _Request:
    __slots__ = ("answered", "error", "fds", "through", "tries", "wanted")

    def __init__(self, wanted: Wanted | Named | None) -> None:
        self.wanted = wanted
        self.tries = 0  # processes that have ended over it
        self.answered = trio.Event()
        self.fds: list[int] = []
        self.error: GpufsError | None = None
        self.through = NOTHING


def _named(wanted: Wanted | Named) -> str:
    """For people."""
    if isinstance(wanted, Named):
        return f"{len(wanted.numbers)} wanted in advance"
    return os.fsdecode(wanted.ref.path)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Ours, which never blocks, and the process's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    return near, far
