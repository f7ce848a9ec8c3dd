"""A mount made in one mount namespace and used in another, as containers do that share a directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.fuse

# The node has a shared directory. A job's container has it as a slave, before anything is mounted there.
# The daemon's container, a third namespace, mounts into it; all see it, and its end. Mounts of other tests
# are let go: here they would live on after their end.
NODE = """
set -e
umount --all --lazy --types fuse.gpufs || true
mount --bind {shared} {shared}
mount --make-shared {shared}
unshare -m --propagation unchanged bash -ec '
    mount --make-rslave {shared}
    until mountpoint -q {shared}/tree; do sleep 0.05; done
    cat {shared}/tree/name > {work}/read
    while mountpoint -q {shared}/tree; do sleep 0.05; done
    ! test -e {shared}/tree/name
' &
job=$!
unshare -m --propagation unchanged {gpufs} mount {work}/data {shared}/tree -o cache_dir={work}/cache
until test -s {work}/read; do kill -0 $job; sleep 0.05; done
cat {shared}/tree/name
{gpufs} umount {shared}/tree
wait $job
"""


@pytest.fixture
def work(workplace: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="nodes-", dir=workplace))
    yield path
    shutil.rmtree(path)


def test_a_mount_is_seen_by_containers_that_were_there_before(work: Path) -> None:
    (work / "shared" / "tree").mkdir(parents=True)
    (work / "data").mkdir()
    (work / "data" / "name").write_text("the bytes")
    gpufs = f"{sys.executable} -m gpufs"
    script = NODE.format(work=work, shared=work / "shared", gpufs=gpufs)
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (work / "read").read_text() == "the bytes"
