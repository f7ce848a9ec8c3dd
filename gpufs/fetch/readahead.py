"""Adaptive read-ahead: which chunks of a large file will be read next."""

from __future__ import annotations

from collections import OrderedDict

MAX_WINDOW = 32  # chunks in flight ahead of a sequential reader
MAX_STREAMS = 16  # readers told apart in one file


class ReadAhead:
    """Follows the readers of one file and says which chunks to have in flight.

    A reader that goes on where it stopped is sequential: its window doubles with each chunk, from
    1 to MAX_WINDOW. Any other access is random and gets only what it asked for. Several readers of
    one file are told apart by where each is expected next.
    """

    __slots__ = ("_chunks", "_streams")

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._streams: OrderedDict[int, int] = OrderedDict()  # next chunk expected -> window

    def access(self, first: int, last: int) -> range:
        """Chunks to have in flight beyond `last`, when chunks `first` to `last` are being read."""
        streams = self._streams
        following = last + 1
        expected = next((chunk for chunk in streams if first <= chunk <= last), None)
        if expected is not None:
            window = min(max(1, streams.pop(expected) * 2), MAX_WINDOW)
        elif following in streams:  # still inside the chunk it was in: nothing new is known
            streams.move_to_end(following)
            return range(0)
        else:
            window = 0
        streams[following] = window
        streams.move_to_end(following)
        if len(streams) > MAX_STREAMS:
            streams.popitem(last=False)
        return range(following, min(following + window, self._chunks))
