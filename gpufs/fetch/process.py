"""`python -m gpufs.fetch.process SOCKET_FD PAGE_FD`: the fetch process, with its configuration on stdin.

Whole objects are fetched here and not in the filesystem process: there fetching and answering the
kernel kept each other waiting for the interpreter (docs/decisions.md).
It serves the requests that come through the socket and ends when that is closed.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from gpufs.cache import Cache
from gpufs.errors import GpufsError
from gpufs.fetch.ahead import Ahead
from gpufs.fetch.fill import EpochFill
from gpufs.fetch.messages import MESSAGE_SIZE, Named, Through, pack_answer, unpack_request
from gpufs.fetch.objects import Objects
from gpufs.fetch.page import FETCH, Own, SharedPage
from gpufs.fetch.traffic import Traffic
from gpufs.index import Index
from gpufs.logs import setup_logging
from gpufs.metrics import Metrics
from gpufs.options import MountConfig
from gpufs.shared import State, open_tier
from gpufs.source import open_configured

REQUESTS_PER_TURN = 64


class Service:
    """Answers the requests that come through a socket."""

    def __init__(self, config: MountConfig, sock: socket.socket, page: SharedPage) -> None:
        options = config.options
        self._socket = sock
        metrics = Metrics(page.counted(FETCH))
        traffic = Traffic(page, FETCH, options.bandwidth_limit, metrics)
        source = open_configured(config, metrics, traffic.concurrency)
        self._cache = Cache(
            Path(options.cache_dir),
            cache_size=options.cache_size,
            min_free=options.min_free,
            metrics=metrics,
            policy=options.policy,
        )
        index = Index(self._cache.index_directory(source.id), source.id)
        own = page.own(FETCH)

        def show(state: State) -> None:
            own[Own.SHARED] = state

        self._ahead = Ahead(index, self._cache, self._tell)
        fill = EpochFill(index, self._cache)
        self._objects = Objects(
            source,
            self._cache,
            self._ahead,
            fill,
            traffic,
            metrics,
            self._answer,
            shared=open_tier(options, metrics, show),
            compress=options.compress == "auto",
        )

    def run(self) -> None:
        """Until nobody can ask any more. What is on its way then is given up."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._objects, select.POLLIN)
        with suppress(ConnectionError):
            while True:
                timeout = self._objects.timeout()
                for fd, _ in poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
                    if fd == self._socket.fileno() and not self._take_requests():
                        raise ConnectionResetError
                self._objects.turn()

    def close(self) -> None:
        self._objects.close()
        self._cache.close()

    def _take_requests(self) -> bool:
        """False when there will be no more."""
        for _ in range(REQUESTS_PER_TURN):
            try:
                message = self._socket.recv(MESSAGE_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not message:
                return False
            number, wanted = unpack_request(message)
            if wanted is None:
                self._objects.in_thread(number, self._cache.flush)
            elif not isinstance(wanted, Named):
                self._objects.demand(number, wanted)
            elif wanted.at_once:
                self._ahead.ask(number, wanted)
            else:
                self._ahead.cancel(number)
        return True

    def _answer(self, number: int, fd: int | None, error: GpufsError | None) -> None:
        message = pack_answer(number, error)
        socket.send_fds(self._socket, [message], [] if fd is None else [fd])

    def _tell(self, number: int, through: Through, error: GpufsError | None) -> None:
        self._socket.send(pack_answer(number, error, through))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the process that started it
    config = MountConfig.from_json(sys.stdin.read())
    setup_logging(config.options.log_level, config.options.log_format)
    socket_fd, page_fd = map(int, sys.argv[1:])
    service = Service(config, socket.socket(fileno=socket_fd), SharedPage(page_fd))
    service.run()
    service.close()
    logging.shutdown()
    # Threads that wait for the source would keep the interpreter; what they bring nobody wants.
    os._exit(0)


if __name__ == "__main__":
    main()
