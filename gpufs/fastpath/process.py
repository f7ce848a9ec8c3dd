"""`python -m gpufs.fastpath.process READY_FD`: the fast path process, with its task on stdin."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpufs.cache.layout import Layout
from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.loop import REQUEST_SIZE, FilesystemGone, Loop
from gpufs.fastpath.negotiation import Agreement, agree
from gpufs.fastpath.opening import Opening
from gpufs.fastpath.opens import OpenTable
from gpufs.fastpath.pages import PageDropper
from gpufs.fastpath.relay import Relay
from gpufs.fastpath.task import Task
from gpufs.handoff.feed import Recorder
from gpufs.handoff.report import READY
from gpufs.index import Index
from gpufs.logs import setup_logging
from gpufs.metrics import Metrics
from gpufs.options import MountConfig
from gpufs.source import open_configured
from gpufs.view import Ownership, View

FEED_SECONDS = 0.25  # files that were handed over are held so long

log = logging.getLogger("gpufs.fastpath")


def main() -> int:
    """Serve until the tree is unmounted (0), or until the filesystem process is gone (1)."""
    task = Task.from_json(sys.stdin.read())
    ready_fd = int(sys.argv[1])
    config = MountConfig.from_json(task.config)
    options = config.options
    setup_logging(options.log_level, options.log_format)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # credentials live in this memory
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    device = Device(task.device_fd)
    pair = socket.socket(fileno=task.pair_fd)
    table = OpenTable(task.table_fd)
    objects = Layout(Path(options.cache_dir))
    agreement = Agreement.unpack(table.agreement()) if task.resumed else _negotiate(device, table, objects)
    recorder = Recorder(socket.socket(fileno=task.feed_fd), os.getpid(), agreement.passthrough)
    recorder.send(time.time_ns())  # before the first request, so that it already knows of the passthrough
    pair.send(agreement.hello())
    pair.recv(REQUEST_SIZE)
    dropper = PageDropper()
    dropper.start()
    opening = Opening(device, table, agreement.passthrough, dropper.close)
    source_id = open_configured(config, Metrics()).id
    index = Index(objects.index_directory(source_id), source_id)
    own = Ownership(options.uid, options.gid, options.file_mode, options.dir_mode)
    loop = Loop(device, pair, index, objects, View(own), options.metadata_ttl, opening, recorder)
    loop.interrupts.start()
    relay = Relay(device, pair, loop, opening, recorder, task.filesystem_pid).start()
    threading.Thread(target=_end_with, args=(relay,), daemon=True).start()
    threading.Thread(target=_feed, args=(recorder,), daemon=True).start()
    if task.resumed and agreement.resend:
        device.resend()
    with os.fdopen(ready_fd, "w") as ready:
        ready.write(f"{READY}\n")
    try:
        loop.run()
    except FilesystemGone:
        return 1
    return 0


def _negotiate(device: Device, table: OpenTable, objects: Layout) -> Agreement:
    """Answer the kernel's INIT; what is agreed stays in the table for those who take over."""
    buffer = bytearray(REQUEST_SIZE)
    size = os.readv(device.fd, [buffer])
    _, opcode, unique, _ = wire.IN_HEADER.unpack_from(buffer)
    if opcode != wire.INIT:
        raise RuntimeError(f"the kernel began with request {opcode}, not with INIT")
    request = memoryview(buffer)[wire.IN_HEADER_SIZE : size]
    agreement, reply = agree(request, os.geteuid() == 0)
    device.reply(unique, reply)
    if agreement.passthrough and not _can_back(device, objects):
        agreement = Agreement(agreement.read_ahead, False, agreement.resend)
    table.set_agreement(agreement.pack())
    return agreement


def _can_back(device: Device, objects: Layout) -> bool:
    """Whether the kernel takes files of the cache's file system for passthrough (not on overlayfs)."""
    try:
        with tempfile.TemporaryFile(dir=objects.tmp) as file:
            device.backing_close(device.backing_open(file.fileno()))
    except OSError as error:
        log.info("no passthrough (%s): files are served from the cache by READ", error.strerror)
        return False
    return True


def _feed(recorder: Recorder) -> None:
    while True:
        recorder.send(time.time_ns())
        time.sleep(FEED_SECONDS)


def _end_with(relay: threading.Thread) -> None:
    """Without the filesystem process this one is of no use: end at once, both are started anew."""
    relay.join()
    os._exit(1)


if __name__ == "__main__":
    # Not sys.exit: the interpreter's orderly end would have to get past threads that may be anywhere.
    os._exit(main())
