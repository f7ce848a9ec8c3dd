"""A data file that cannot be trusted is replaced, never a crash; a sound one is never thrown away."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs.index.damage import find_damage
from gpufs.index.environment import DATA_FILE
from tests.unit.index.helpers import check_invariants, directory, file, fill, opened

# In a process of its own: what goes wrong here is a signal, not an exception.
_USE = """
import sys
from pathlib import Path
from tests.unit.index.helpers import check_invariants, file, fill, opened
with opened(Path(sys.argv[1])) as index:
    empty = index.totals().files == 0
    check_invariants(index)
    fill(index, "", [file("after")])
    check_invariants(index)
sys.exit(7 if empty else 0)
"""


def filled(folder: Path) -> Path:
    with opened(folder) as index:
        fill(index, "", [directory("d"), *(file(f"{n:06}", "x" * (n % 9)) for n in range(5000))])
        for count in range(0, 3000, 500):
            fill(index, "d", [file(f"{n:06}") for n in range(count)])
    return folder / DATA_FILE


def use(folder: Path) -> int:
    done = subprocess.run([sys.executable, "-c", _USE, str(folder)], capture_output=True, text=True)
    assert done.returncode in (0, 7), done.stderr
    return done.returncode


@pytest.mark.parametrize("length", [1, 100, 4096, 8191, 8192, 1_000_000])
def test_garbage_is_replaced(tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture) -> None:
    data = filled(tmp_path)
    data.write_bytes(random.Random(length).randbytes(length))
    assert use(tmp_path) == 7
    data.write_bytes(random.Random(length).randbytes(length))
    with opened(tmp_path) as index:
        check_invariants(index)
    assert "starting afresh" in caplog.text


@pytest.mark.parametrize("part", [0.02, 0.3, 0.9])
def test_a_truncated_file_is_replaced(tmp_path: Path, part: float) -> None:
    data = filled(tmp_path)
    os.truncate(data, int(data.stat().st_size * part))
    assert use(tmp_path) == 7


@pytest.mark.parametrize("page", [0, 1])
def test_a_lost_header_is_noticed(tmp_path: Path, page: int) -> None:
    data = filled(tmp_path)
    with data.open("r+b") as file_:
        file_.seek(page * 4096)
        file_.write(bytes(4096))
    assert use(tmp_path) == 7


def test_an_empty_file_and_a_garbage_lock_file_are_harmless(tmp_path: Path) -> None:
    data = filled(tmp_path)
    (tmp_path / "lock.mdb").write_bytes(b"garbage" * 1000)
    assert use(tmp_path) == 0
    data.write_bytes(b"")
    assert use(tmp_path) == 7


def test_a_sound_file_is_sound_in_every_state_of_its_life(tmp_path: Path) -> None:
    random_ = random.Random(1)
    with opened(tmp_path) as index:
        assert find_damage(tmp_path / DATA_FILE) is None
        for _ in range(40):
            count = random_.randrange(3000)
            fill(index, "", [file(f"{random_.randrange(9000):05}", str(count)) for _ in range(count)])
            assert find_damage(tmp_path / DATA_FILE) is None
    with opened(tmp_path) as index:
        index.drop_orphans()
        assert find_damage(tmp_path / DATA_FILE) is None
