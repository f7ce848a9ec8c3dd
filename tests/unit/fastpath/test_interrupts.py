"""Which signals end a program, as /proc tells it; who is let go, and when."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpufs.fastpath import interrupts
from gpufs.fastpath.interrupts import Interrupts, is_ending

PROGRAM = """
import signal, sys
for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda *_: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGCHLD])
print(flush=True)
signal.pause()
"""


@pytest.fixture
def stopped() -> Iterator[int]:
    """A program whose signals stay pending because it is stopped."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield program.pid
        finally:
            program.kill()


def test_caught_ignored_blocked_and_harmless_signals_end_nobody(stopped: int) -> None:
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD):
        os.kill(stopped, number)
        assert not is_ending(stopped), number
    os.kill(stopped, signal.SIGQUIT)  # with a core dump: the kernel does not make SIGKILL of it
    assert is_ending(stopped)


def test_ctrl_c_counts_though_it_is_caught(stopped: int) -> None:
    os.kill(stopped, signal.SIGINT)
    assert is_ending(stopped)


def test_of_a_program_that_cannot_be_seen_nothing_is_known() -> None:
    assert not is_ending(0)
    assert not is_ending(1 << 30)


class Device:
    def __init__(self) -> None:
        self.errors: list[tuple[int, int]] = []

    def error(self, unique: int, number: int) -> bool:
        self.errors.append((unique, number))
        return False


def test_a_later_signal_is_found_though_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    ending: set[int] = set()
    monkeypatch.setattr(interrupts, "is_ending", lambda thread: thread in ending)
    monkeypatch.setattr(interrupts, "RECHECK", 0.01)
    device: Any = Device()
    asked = Interrupts(device)
    asked.waiting |= {10: 1, 12: 2, 14: 3}
    asked.start()
    for unique in (10, 12, 14, 99):
        asked.ask(unique)
    assert not asked.settle(10)
    ending.add(2)
    end = time.monotonic() + 10
    while not device.errors and time.monotonic() < end:
        time.sleep(0.01)
    assert device.errors == [(12, errno.EINTR)]
    del asked.waiting[14]  # answered: whoever waited for it has gone on
    ending.add(3)
    assert asked.settle(14)
    assert device.errors == [(12, errno.EINTR)]
