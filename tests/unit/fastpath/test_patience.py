"""Waiting for requests: all of them are seen, and who comes rarely costs no processor time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpufs.fastpath.patience import AWAKE, Patience


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    both = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield both
    for end in both:
        end.close()


def test_every_request_is_seen(pair: tuple[socket.socket, socket.socket]) -> None:
    """Whether it is there already, comes while the waiter is awake, or asleep."""
    near, far = pair
    patience = Patience(near.fileno())

    def send() -> None:
        for number in range(200):
            far.send(b"%d" % number)
            time.sleep((0, 0.00002, 0.0005)[number % 3])  # the rhythm is what is tested

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(200):
        patience.wait()
        assert os.read(near.fileno(), 100) == b"%d" % number
    sender.join()


def test_the_end_of_the_other_side_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    patience = Patience(near.fileno())
    far.close()
    patience.wait()
    assert os.read(near.fileno(), 100) == b""


@pytest.mark.alone
def test_who_comes_rarely_costs_no_time_of_the_processor(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    patience = Patience(near.fileno())
    later = threading.Event()

    def send() -> None:
        for _ in range(20):
            later.wait(0.005)
            far.send(b"x")

    sender = threading.Thread(target=send)
    sender.start()
    used = 0
    for _ in range(20):
        begin = time.thread_time_ns()
        patience.wait()
        used += time.thread_time_ns() - begin
        os.read(near.fileno(), 100)
    sender.join()
    assert used < 10 * AWAKE, f"awake for {used / 20 / 1000:.0f} us of each 5 ms"
