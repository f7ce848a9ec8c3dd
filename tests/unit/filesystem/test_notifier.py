"""The notifier: in order, off the trio thread, and flushed when asked."""

from __future__ import annotations

import threading

import pytest
import trio

from gpufs.filesystem.notifier import Notifier
from gpufs.index import Change


def test_flush_waits_for_all_that_was_told_in_order_and_off_the_trio_thread() -> None:
    seen: list[Change] = []
    threads: set[int] = set()

    def send(change: Change) -> None:
        threads.add(threading.get_ident())
        seen.append(change)

    async def main() -> None:
        notifier = Notifier(send)
        changes = [Change(1, b"%d" % number) for number in range(500)]
        for change in changes:
            notifier.tell(change)
        await notifier.flush()
        assert seen == changes
        assert notifier.sent == len(changes)

    trio.run(main)
    assert threads and threading.get_ident() not in threads


def test_a_name_the_kernel_does_not_know_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    def send(change: Change) -> None:
        raise FileNotFoundError if change.name == b"unknown" else OSError("broken")

    async def main() -> None:
        notifier = Notifier(send)
        notifier.tell(Change(1, b"unknown"))
        await notifier.flush()
        assert not caplog.records
        notifier.tell(Change(7, b"other"))
        await notifier.flush()
        assert "inode 7" in caplog.text and notifier.sent == 2

    trio.run(main)
