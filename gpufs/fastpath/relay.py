"""The way back: what the filesystem process answers, passed on to the kernel."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time

from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.loop import INTERNAL, Loop
from gpufs.fastpath.negotiation import LARGEST_READ
from gpufs.fastpath.opening import Opening
from gpufs.handoff.feed import Recorder
from gpufs.handoff.handles import INODE

_OUT = wire.OUT_HEADER.size

log = logging.getLogger("gpufs.fastpath")


class Relay:
    """Passes replies on in one thread, and notifications in another.

    A notification waits for locks of the kernel that a program holds which waits for one of the
    replies behind it: hence never in the same thread.
    """

    def __init__(
        self,
        device: Device,
        pair: socket.socket,
        loop: Loop,
        opening: Opening,
        recorder: Recorder,
        filesystem_pid: int,
    ) -> None:
        self._device = device
        self._pair = pair
        self._loop = loop
        self._opening = opening
        self._recorder = recorder
        self._fds = f"/proc/{filesystem_pid}/fd"
        self._notifications: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def start(self) -> threading.Thread:
        """Start both threads; the returned one ends when the filesystem process is gone."""
        threading.Thread(target=self._notify, name="gpufs notify", daemon=True).start()
        thread = threading.Thread(target=self._relay, name="gpufs relay", daemon=True)
        thread.start()
        return thread

    def _relay(self) -> None:
        box = bytearray(LARGEST_READ + (64 << 10))
        message = memoryview(box)
        opens, waiting = self._loop.opens_forwarded, self._loop.interrupts.waiting
        while True:
            try:
                size = self._pair.recv_into(box)
            except ConnectionError:
                return
            if not size:
                return
            _, error, unique = wire.OUT_HEADER.unpack_from(box)
            waiting.pop(unique, None)
            if unique in opens:
                opens.discard(unique)
                if not error:
                    handle, flags, _ = wire.OPEN_OUT.unpack_from(box, _OUT)
                    kept = self._opening.opened(unique, handle, flags, self._fds)
                    if not kept:
                        self._recorder.taken(handle & INODE)
                    continue
            elif unique == 0:
                self._notifications.put(bytes(message[:size]))
                continue
            elif unique & INTERNAL and not unique & wire.UNIQUE_RESEND:
                continue
            self._device.send(message[:size])

    def _notify(self) -> None:
        while True:
            try:
                self._device.send(self._notifications.get())
            except OSError as error:
                log.warning("the kernel refused a notification: %s", error.strerror)
            self._recorder.notified += 1
            if self._notifications.empty():  # somebody may wait for the last one
                self._recorder.send(time.time_ns())
