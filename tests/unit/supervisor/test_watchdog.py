"""A hung process is told from one that is slow, stopped, or not asked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from gpufs.control import client
from gpufs.errors import DeadlineExceeded
from gpufs.watchdog import MISSES, Watchdog


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        yield sleeper.pid
        sleeper.kill()


class Answers:
    """What the control socket gives, one question after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: Exception | None = None
        monkeypatch.setattr(client, "call", self.call)

    def call(self, *_: object, **__: object) -> dict[str, object]:
        if self.failure is not None:
            raise self.failure
        return {}


@pytest.mark.parametrize("silence", [DeadlineExceeded("no answer"), BlockingIOError()])
def test_only_silence_for_long_is_a_hang(
    silence: Exception, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, watchdog = Answers(monkeypatch), Watchdog("/data")
    for failure in (None, client.NobodyListens("gone"), OSError(24, "too many files")):
        answers.failure = silence
        assert not any(watchdog.hangs(process) for _ in range(MISSES - 1))
        answers.failure = failure
        assert not watchdog.hangs(process), "any other outcome begins the count anew"
    answers.failure = silence
    assert [watchdog.hangs(process) for _ in range(MISSES)] == [False] * (MISSES - 1) + [True]


def test_a_stopped_process_does_not_hang(process: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, watchdog = Answers(monkeypatch), Watchdog("/data")
    answers.failure = DeadlineExceeded("no answer")
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT)
    assert not any(watchdog.hangs(process) for _ in range(2 * MISSES))
