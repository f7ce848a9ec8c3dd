"""How a daemon of gpufs tells its parent that it is ready, or why it is not."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpufs.errors import GpufsError

READY, FAILED = "ready", "failed: "
# What a supervisor logs when it is not restarted; `gpufs restart` looks for it, also in older ones' logs.
NOT_RESTARTED = "not restarted, the code that is installed now cannot take over: "


def report_to(ready_fd: int, work: Callable[[Callable[[], None]], int]) -> int:
    """Run `work(ready)` and give its exit status; 1 when it raised a GpufsError.

    The parent reads one line from `ready_fd`: "ready" once `ready()` was called, "failed: why" when
    the work failed before; nothing when the process died.
    """
    parent = os.fdopen(ready_fd, "w")

    def answer(line: str) -> None:
        if not parent.closed:
            parent.write(line + "\n")
            parent.close()

    try:
        return work(lambda: answer(READY))
    except GpufsError as error:
        import logging  # commands that only want the words above start without it

        logging.getLogger("gpufs").error("%s", error)
        answer(f"{FAILED}{error}")
        return 1
