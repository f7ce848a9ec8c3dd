"""`gpufs top` at work: asks, waits, and draws on a terminal or prints."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gpufs.errors import GpufsError
from gpufs.observe.figures import Figures
from gpufs.observe.history import History
from gpufs.observe.screen import view, visible

# The other screen, whose contents do not stay; no cursor; no line is continued on the next one.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_PRINTED_WIDTH = 80  # where there is no terminal
_HINT = "q: quit"

Ask = Callable[[], Figures]
View = Callable[[int, int], list[str]]  # the lines for a width and a height


def watch(ask: Ask, seconds: float, count: int | None) -> None:
    """Show the mount every `seconds`, `count` times or until somebody quits.

    Raises what `ask` does, on a terminal only the first time.
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_each(ask, seconds, count)
        return
    history = History(ask())
    with _Terminal() as terminal:
        _draw(terminal, ask, history, seconds, count)


def print_each(ask: Ask, seconds: float, count: int | None) -> None:
    """A text for each interval. Raises what `ask` does."""
    history = History(ask())
    width = shutil.get_terminal_size((_PRINTED_WIDTH, 24)).columns
    shown = 0
    while count is None or shown < count:
        time.sleep(seconds)
        lines = view(*history.add(ask()), width, None, colour=False)
        print(("\n" if shown else "") + "\n".join(lines), flush=True)
        shown += 1


def _draw(terminal: _Terminal, ask: Ask, history: History, seconds: float, count: int | None) -> None:
    def first(width: int, height: int) -> list[str]:
        return [f"gpufs top: measuring the first {seconds:g} s"]

    show: View = first
    below, shown, due = _HINT, 0, time.monotonic() + seconds
    while shown != count:
        terminal.draw(show, below)
        if terminal.wait(due - time.monotonic()):
            return
        if time.monotonic() < due:
            continue  # another size
        due = max(due + seconds, time.monotonic())
        try:
            interval, verdict = history.add(ask())
        except GpufsError as error:  # it may be starting anew
            below = visible(str(error))
        else:
            show = partial(view, interval, verdict, colour=terminal.colour)
            below = _HINT
            shown += 1
    terminal.last = show


class _Terminal:
    """The terminal in our hands, and given back as it was. `last`: what to leave on it."""

    def __init__(self) -> None:
        # https://no-color.org
        self.colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.last: View | None = None
        self._resized, self._resize = os.pipe()
        os.set_blocking(self._resized, False)
        os.set_blocking(self._resize, False)

    def __enter__(self) -> _Terminal:
        self._settings = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        on: dict[int, Any] = {
            signal.SIGWINCH: self._on_resize,
            signal.SIGTERM: self._on_end,
            signal.SIGHUP: self._on_end,
            signal.SIGTSTP: signal.SIG_IGN,  # the shell would get our screen
        }
        self._signals = {number: signal.signal(number, handler) for number, handler in on.items()}
        _write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a terminal that was closed
            _write(_LEAVE)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        os.close(self._resized)
        os.close(self._resize)
        if self.last is not None:
            _write("\n".join(self.last(*os.get_terminal_size(sys.stdout.fileno()))) + "\n")

    def draw(self, show: View, below: str) -> None:
        """All in one write, over what is there: nothing flickers."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        lines = show(width, height - 1)
        lines += [""] * (height - 1 - len(lines))
        _write(_HOME + "".join(f"{line}{_END_OF_LINE}\n" for line in lines) + below[:width] + _BELOW)

    def wait(self, seconds: float) -> bool:
        """Until then, or another size; whether somebody wants to quit."""
        found, _, _ = select.select([sys.stdin, self._resized], [], [], max(seconds, 0))
        if self._resized in found:
            os.read(self._resized, 4096)
        return sys.stdin in found and os.read(sys.stdin.fileno(), 64) in (b"q", b"Q", b"\x1b", b"")

    def _on_resize(self, *_: object) -> None:
        with suppress(BlockingIOError):
            os.write(self._resize, b"x")

    def _on_end(self, number: int, _: object) -> None:
        raise SystemExit(128 + number)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
