"""A slow link in front of a server: so many bytes a second for all connections together, in one queue.

`python -m tests.servers.link HOST PORT RATE ROUND_TRIP` is the link: a process of its own. It prints its port
and ends with its stdin. A connection has WINDOW bytes on their way at most, as TCP has.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

WINDOW = 1 << 20
_SEGMENT = 16 << 10


class _Link:
    def __init__(self, host: str, port: int, rate: float, round_trip: float) -> None:
        self._upstream = host, port
        self._rate = rate
        self._round_trip = round_trip
        self._free_at = 0.0  # when the link has passed on all that was sent so far

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=_SEGMENT)
        try:
            await asyncio.gather(self._requests(reader, up_writer), self._answers(up_reader, writer))
        except OSError:
            pass
        finally:
            for each in (writer, up_writer):
                with suppress(OSError):
                    each.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(_SEGMENT):
            loop.call_later(self._round_trip, _write, writer, data)
        loop.call_later(self._round_trip, writer.close)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        room, freed = WINDOW, asyncio.Event()

        def acknowledged(count: int) -> None:
            nonlocal room
            room += count
            freed.set()

        while data := await reader.read(_SEGMENT):
            while room < len(data):
                freed.clear()
                await freed.wait()
            room -= len(data)
            self._free_at = max(self._free_at, loop.time()) + len(data) / self._rate
            loop.call_at(self._free_at, _write, writer, data)
            loop.call_at(self._free_at + self._round_trip, acknowledged, len(data))
        loop.call_at(self._free_at, writer.close)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


@contextmanager
def slow_link(upstream: str, rate: float, round_trip: float) -> Iterator[str]:
    """The address of a link to the server at `upstream`: bytes a second, seconds."""
    parts = urlsplit(upstream)
    arguments = [str(parts.hostname), str(parts.port), str(rate), str(round_trip)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.link", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


async def _main(host: str, port: int, rate: float, round_trip: float) -> None:
    link = _Link(host, port, rate, round_trip)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0, backlog=512, limit=_SEGMENT)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
