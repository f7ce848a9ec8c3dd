"""What these tests themselves promise: they leave nothing, even when a test process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mounts import daemons_of, is_mounted, wait_until

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs"),
]

# Arguments: a source, and a directory to mount a tmpfs on.
KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.guard import guarded
from tests.mounts import Mounted

source, disk = sys.argv[1:]
with guarded(Path(disk).parent) as own:
    env = os.environ | {"GPUFS_TEST_MOUNT": str(own / "mnt")}
    Mounted(f"file://{source}", own, {"fast_path": "auto"}, env).mount().pids()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    print(own, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_test_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Its mounts, the processes behind them and its directory are gone, soon after it."""
    source, disk = tmp_path / "data", tmp_path / "disk"
    source.mkdir()
    disk.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, source, disk], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    own = Path(done.stdout.strip())
    wait_until(lambda: not own.exists(), "everything to be put away")
    assert not is_mounted(own / "mnt") and not is_mounted(disk)
    assert not daemons_of(own)
