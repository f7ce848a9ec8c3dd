"""The access feed: what goes in comes out, in order; a reader that is late loses no file."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from gpufs.handoff import feed, handles
from gpufs.handoff.feed import MAX_RECORDS, MESSAGE_SIZE, Recorder, unpack

DIGEST = bytes(range(16))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        far.setblocking(False)
        yield near, far


def received(far: socket.socket) -> list[feed.Batch]:
    batches = []
    while True:
        try:
            batches.append(unpack(far.recv(MESSAGE_SIZE)))
        except BlockingIOError:
            return batches


def test_round_trip(pair: tuple[socket.socket, socket.socket]) -> None:
    recorder = Recorder(pair[0], os.getpid(), passthrough=True)
    recorder.opened(handles.INODE, DIGEST, 4_000_000)
    recorder.taken(7)
    recorder.opened(3, b"\xff" * 16, 1)
    recorder.taken(handles.INODE)
    recorder.send(123456789)
    recorder.notified, recorder.lookups, recorder.opened_bytes = 5, 70, 1 << 50
    recorder.send(123456790)
    first, second = received(pair[1])
    assert first == feed.Batch(
        123456789,
        os.getpid(),
        True,
        [(handles.INODE, DIGEST, 4_000_000), (3, b"\xff" * 16, 1)],
        [7, handles.INODE],
        notified=0,
        lookups=0,
        opened_bytes=0,
    )
    assert second == feed.Batch(123456790, os.getpid(), True, [], [], 5, 70, 1 << 50), "a sign of life"


def test_no_message_is_larger_than_the_reader_expects(pair: tuple[socket.socket, socket.socket]) -> None:
    recorder = Recorder(pair[0], 1, passthrough=False)
    for number in range(2 * MAX_RECORDS + 1):
        recorder.opened(number, DIGEST, 1)
    for _ in range(3):
        recorder.send(1)
    batches = received(pair[1])
    assert [i for b in batches for i, _, _ in b.opened] == list(range(2 * MAX_RECORDS + 1))
    assert max(len(b.opened) for b in batches) == MAX_RECORDS
    assert not any(b.passthrough for b in batches)


def test_a_reader_that_stands_still_costs_counts_but_no_file(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every taken file arrives, once; of the opens the latest; what waits is bounded."""
    monkeypatch.setattr(feed, "MAX_WAITING", 5000)
    recorder = Recorder(pair[0], 1, passthrough=True)
    sent_opens = itertools.count()
    taken = []
    for _ in range(60):
        for _ in range(1000):
            recorder.opened(next(sent_opens), DIGEST, 1)
        taken.append(len(taken))
        recorder.taken(taken[-1])
        recorder.send(1)
    assert len(recorder._records) < 5000 + len(taken)
    batches: list[feed.Batch] = []
    for _ in range(60):
        batches += received(pair[1])
        recorder.send(2)
    batches += received(pair[1])
    assert [inode for b in batches for inode in b.taken] == taken
    opens = [inode for b in batches for inode, _, _ in b.opened]
    assert opens == sorted(set(opens)) and opens[-1] == next(sent_opens) - 1
    assert len(opens) >= 5000 - len(taken)


def test_events_of_two_threads_while_it_is_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    """None is lost and none comes twice, by two that send, with the socket full every now and then."""
    recorder = Recorder(pair[0], 1, passthrough=True)
    count = 20_000

    def record() -> None:
        for number in range(count):
            recorder.opened(number, DIGEST, 1)

    def take() -> None:
        for number in range(count):
            recorder.taken(number)
            if number % 100 == 0:
                recorder.send(2)

    threads = [threading.Thread(target=record), threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    batches: list[feed.Batch] = []
    while any(thread.is_alive() for thread in threads) or recorder._records:
        recorder.send(1)
        if len(recorder._records) > 3000 or not any(thread.is_alive() for thread in threads):
            batches += received(pair[1])
    for thread in threads:
        thread.join()
    batches += received(pair[1])
    assert [inode for b in batches for inode, _, _ in b.opened] == list(range(count))
    assert [inode for b in batches for inode in b.taken] == list(range(count))


def test_a_reader_that_is_gone_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    recorder = Recorder(pair[0], 1, passthrough=True)
    recorder.taken(1)
    recorder.send(1)


@pytest.mark.parametrize("inode", [1, handles.INODE])
@pytest.mark.parametrize("fd", [0, 3, handles.FD_MASK])
def test_a_handle_says_which_descriptor_is_handed_over(inode: int, fd: int) -> None:
    handle = handles.handed(inode, fd)
    assert handles.handed_fd(handle) == fd and handle & handles.INODE == inode
    assert not handle & handles.OURS and handle < 1 << 64


def test_a_descriptor_too_large_for_a_handle_is_not_handed_over() -> None:
    assert handles.handed(5, handles.FD_MASK + 1) == 5
    assert handles.handed_fd(5) is None and handles.handed_fd(5 | handles.OURS) is None
