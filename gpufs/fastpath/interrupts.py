"""Programs that are told to end while they wait for the filesystem process: the kernel lets them go.

When a signal comes to a program that waits, the kernel sends INTERRUPT once, and then waits for the
answer all the same, even with SIGKILL. So for those that are about to end the answer is EINTR. What the
filesystem process answers later the kernel does not want any more; it is refused like any such answer.
Other signals must not disturb: no program expects open(2) or read(2) of a file to be interrupted by a
timer or a child's end.
"""

from __future__ import annotations

import errno
import logging
import queue
import signal
import threading
from contextlib import suppress

from gpufs.fastpath.device import Device

RECHECK = 0.25  # seconds; the kernel does not tell of a second signal

_HARMLESS = {  # whose default is not to end the program
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
}

log = logging.getLogger("gpufs.fastpath")


def _mask(*signals: int) -> int:
    return sum(1 << number - 1 for number in signals)


class Interrupts:
    """`waiting`: unique -> thread that waits; the loop enters what it forwards, the relay takes it out."""

    def __init__(self, device: Device) -> None:
        self.waiting: dict[int, int] = {}
        self._device = device
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self) -> None:
        """Look after what is asked, in a thread: it reads /proc."""
        threading.Thread(target=self._run, name="gpufs interrupts", daemon=True).start()

    def ask(self, unique: int) -> None:
        """The kernel says that whoever waits for this request has got a signal."""
        if unique in self.waiting:  # else it is answered
            self._asked.put(unique)

    def _run(self) -> None:
        asked: set[int] = set()
        while True:
            with suppress(queue.Empty):
                asked.add(self._asked.get(timeout=RECHECK if asked else None))
            asked = {unique for unique in asked if not self.settle(unique)}

    def settle(self, unique: int) -> bool:
        """Let the program go if it is ending; False when there may be something to do later."""
        thread = self.waiting.get(unique)
        if thread is None:
            return True
        if not is_ending(thread):
            return False
        try:
            self._device.error(unique, errno.EINTR)
        except OSError as error:
            log.warning("a program that ends could not be told: %s", error.strerror)
        return True


def is_ending(thread: int) -> bool:
    """Whether a signal is going to end this thread of some program, or is the one of Ctrl-C.

    Those that catch Ctrl-C are told too: Python for example turns it into an exception as soon as it
    can, and does again what was interrupted if it does not. False when it cannot be known.
    """
    masks = dict.fromkeys(("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"), 0)
    try:
        with open(f"/proc/{thread}/status") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in masks:
                    masks[name] = int(value, 16)
    except OSError:
        return False
    pending = masks["SigPnd"] | masks["ShdPnd"]
    if pending & _mask(signal.SIGKILL):  # the kernel makes it of all that ends without a core dump
        return True
    open_to = pending & ~(masks["SigBlk"] | masks["SigIgn"] | _mask(*_HARMLESS))
    return bool(open_to & ~masks["SigCgt"] or open_to & _mask(signal.SIGINT))
