"""`gpufs top` on real mounts: for scripts, and on a terminal that is drawn on, resized and given back."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mounts import GPUFS, Mounted, MountFactory

pytestmark = [pytest.mark.fuse, pytest.mark.parametrize("fast_path", ["auto"])]

PATIENCE = 60.0  # seconds


@pytest.fixture
def mounted(mount: MountFactory, tmp_path: Path) -> Mounted:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"x" * 1000)
    return mount(f"file://{tmp_path}/data")


def test_a_script_gets_one_interval_as_text(mounted: Mounted) -> None:
    done = mounted.command("top", str(mounted.path), "--once", "-d", "0.2")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and done.stdout.count("limit   nothing") == 1
    done = mounted.command("top", str(mounted.path), "-n", "3", "-d", "0.1")
    assert done.returncode == 0 and done.stdout.count("limit   nothing") == 3


@pytest.mark.parametrize("arguments", [["-d", "0"], ["-n", "0"], ["-d", "x"]])
def test_what_makes_no_sense_is_refused(mounted: Mounted, arguments: list[str]) -> None:
    assert mounted.command("top", str(mounted.path), *arguments).returncode == 2


class Screen:
    """A terminal that `gpufs top` runs on; `text` is all that it has written so far."""

    def __init__(self, near: int, process: subprocess.Popen[bytes]) -> None:
        self.near = near
        self.process = process
        self.text = ""

    def read_until(self, wanted: str, count: int = 1) -> None:
        """From now on."""
        start, end = len(self.text), time.monotonic() + PATIENCE
        while self.text.count(wanted, start) < count:
            assert time.monotonic() < end, f"no {wanted!r} in {self.text[start:]!r}"
            if select.select([self.near], [], [], 0.1)[0]:
                self.text += os.read(self.near, 1 << 16).decode()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)


@contextmanager
def on_a_terminal(mounted: Mounted, *arguments: str, **env: str) -> Iterator[Screen]:
    near, far = pty.openpty()
    fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    before = termios.tcgetattr(far)
    process = subprocess.Popen(
        [*GPUFS, "top", str(mounted.path), *arguments],
        stdin=far, stdout=far, stderr=far, env=mounted.env | {"TERM": "xterm"} | env,
    )  # fmt: skip
    try:
        yield Screen(near, process)
        assert termios.tcgetattr(far) == before, "the terminal is as it was"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(near)
        os.close(far)


def frames(text: str) -> list[str]:
    return text.split("\x1b[H")[1:]


def test_it_is_drawn_over_itself_until_q(mounted: Mounted) -> None:
    with on_a_terminal(mounted, "-d", "0.1") as screen:
        screen.read_until("limit", 3)
        os.write(screen.near, b"q")
        assert screen.process.wait(PATIENCE) == 0
        screen.read_until("\x1b[?1049l")
        assert screen.text.startswith("\x1b[?1049h")
        for frame in frames(screen.text)[:-1]:
            assert frame.count("\n") == 23 and "\x1b[2J" not in frame, "never cleared, so it does not flicker"
        assert "\x1b[1m" in screen.text and "q: quit" in screen.text


def test_another_size_is_drawn_at_once(mounted: Mounted) -> None:
    with on_a_terminal(mounted, "-d", "3600") as screen:
        screen.read_until("q: quit")
        screen.resize(50, 10)
        screen.read_until("q: quit")
        assert frames(screen.text)[-1].count("\n") == 9
        os.write(screen.near, b"q")
        assert screen.process.wait(PATIENCE) == 0


def test_without_colours_when_the_user_wants_none(mounted: Mounted) -> None:
    with on_a_terminal(mounted, "-d", "0.1", NO_COLOR="1") as screen:
        screen.read_until("limit")
        os.write(screen.near, b"q")
        assert screen.process.wait(PATIENCE) == 0
        assert "\x1b[1m" not in screen.text


def test_after_so_many_intervals_the_last_stays_on_the_terminal(mounted: Mounted) -> None:
    with on_a_terminal(mounted, "-d", "0.1", "-n", "2") as screen:
        assert screen.process.wait(PATIENCE) == 0
        screen.read_until("\x1b[?1049l")
        assert "names" in screen.text.partition("\x1b[?1049l")[2]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_end_from_outside_gives_the_terminal_back(mounted: Mounted, number: int, status: int) -> None:
    with on_a_terminal(mounted, "-d", "0.1") as screen:
        screen.read_until("limit")
        screen.process.send_signal(number)
        screen.read_until("\x1b[?1049l")
        assert screen.process.wait(PATIENCE) == status


def test_a_mount_that_goes_away_is_told_and_the_view_stays(mounted: Mounted) -> None:
    with on_a_terminal(mounted, "-d", "0.1") as screen:
        screen.read_until("limit")
        mounted.umount()
        screen.read_until("no gpufs daemon answers")
        mounted.mount()
        screen.read_until("q: quit")
        os.write(screen.near, b"q")
        assert screen.process.wait(PATIENCE) == 0
