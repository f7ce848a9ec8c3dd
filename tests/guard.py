"""Puts away what a test process leaves when it is killed: mounts, the processes behind them, directories.

`python -m tests.guard PID OWN OTHER...` waits for the end of that process, or of its own standard input.
Then nothing is mounted below these directories any more, no daemon of such a mount runs, and OWN is gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufs.control.paths import all_mounts
from tests.mounts import daemons_of, detach, wait_until

PATIENCE = 10.0  # seconds for daemons whose mount has been taken away


@contextmanager
def guarded(*others: Path) -> Iterator[Path]:
    """A directory to mount in, which anybody may enter; all of it is gone after the block, or our death.

    What is mounted below `others` is unmounted then too.
    """
    own = Path(tempfile.mkdtemp(prefix="gpufs-tests-", dir="/var/tmp"))
    own.chmod(0o755)
    command = [sys.executable, "-m", "tests.guard", str(os.getpid()), str(own), *map(str, others)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parent.parent
    ) as guard:
        try:
            yield own
        finally:
            guard.communicate()


def put_away(own: Path, others: list[Path]) -> None:
    places = [own, *others]
    for mount in reversed(all_mounts()):
        if any(Path(mount.mountpoint).is_relative_to(place) for place in places):
            detach(Path(mount.mountpoint))
    with suppress(AssertionError):
        wait_until(lambda: not daemons_of(own), "the daemons to end", PATIENCE)
    for pid in daemons_of(own):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(own, ignore_errors=True)


def main() -> None:
    watched = os.pidfd_open(int(sys.argv[1]))
    select.select([watched, sys.stdin], [], [])
    put_away(Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])


if __name__ == "__main__":
    main()
