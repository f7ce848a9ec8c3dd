"""Signals are noted and acted on between other things; processes that cannot start say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs import lives
from gpufs.lives import Lives, Signals, StartFailed, Stopped
from gpufs.options import MountConfig, Options


@pytest.fixture
def signals() -> Iterator[Signals]:
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in handled}
    signals = Signals()
    signals.listen()
    yield signals
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_stop_counts_and_a_restart_is_one(signals: Signals) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert signals.take()
    assert (signals.stops, signals.restart) == (2, True)


def test_signals_that_are_held_back_come_later() -> None:
    """None is lost, and none kills, while one supervisor (a process of one thread) becomes the next."""
    before = """
import os, signal, sys
from gpufs.lives import Signals
signals = Signals()
signals.listen()
signals.hold_back()
os.kill(os.getpid(), signal.SIGTERM)
assert not signals.take()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
    after = """
from gpufs.lives import Signals
signals = Signals()
signals.listen()
assert signals.take() and signals.stops == 1
print("came later")
"""
    done = subprocess.run([sys.executable, "-c", before, after], capture_output=True, text=True, timeout=60)
    assert done.stdout == "came later\n", done.stderr


def test_a_stop_ends_a_pause(signals: Signals) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    began = time.monotonic()
    with pytest.raises(Stopped):
        signals.pause(30)
    assert time.monotonic() - began < 5


def config(tmp_path: Path) -> MountConfig:
    return MountConfig("file:///", str(tmp_path), Options())


def start(tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Have `body` in place of the filesystem process; READY is the descriptor of its answer."""
    (tmp_path / "pretended.py").write_text(f"import os, sys, time\nREADY = int(sys.argv[1])\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(lives, "MODULES", ("pretended", "pretended"))
    table = os.memfd_create("table")
    before = sorted(os.listdir("/proc/self/fd"))
    try:
        one = Lives(config(tmp_path), table, signals, resumed=False)
        try:
            one.await_ready()
        finally:
            one.end()
            assert sorted(os.listdir("/proc/self/fd")) == before, "a descriptor was left"
    finally:
        os.close(table)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.write(READY, b'failed: no such bucket\\n')", "^no such bucket$"),
        ("sys.exit(7)", r"filesystem process ended at its start \(exit status 7\)"),
        ("os.kill(os.getpid(), 9)", r"killed by SIGKILL"),
    ],
)
def test_why_a_process_did_not_start(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    with pytest.raises(StartFailed, match=words):
        start(tmp_path, signals, monkeypatch, body)


def test_a_process_that_hangs_at_its_start(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "START_PATIENCE", 0.3)
    with pytest.raises(StartFailed, match="not ready within"):
        start(tmp_path, signals, monkeypatch, "time.sleep(60)")


def test_a_program_that_is_not_there(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that was taken away under a running mount: a failure to start, and not a crash."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with pytest.raises(StartFailed, match="cannot start the filesystem process"):
        start(tmp_path, signals, monkeypatch, "")


def test_a_ready_process_is_ended(tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, signals, monkeypatch, "os.write(READY, b'ready\\n'); time.sleep(60)")


def test_a_stop_while_a_process_starts(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        start(tmp_path, signals, monkeypatch, "os.kill(os.getppid(), 15); time.sleep(60)")


@pytest.mark.parametrize("module", ["gpufs.supervisor", "gpufs.service"])
def test_a_daemon_whose_command_was_interrupted_before_it_told_what_to_mount(module: str) -> None:
    """Ctrl-C in the first moment: it ends without a word."""
    done = subprocess.run(
        [sys.executable, "-m", module, "1"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
