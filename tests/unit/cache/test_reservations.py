"""Room that one process has taken is counted by the others at once, and no longer than it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.cache.reservations import Reservations
from gpufs.cache.space import Space
from gpufs.options import Size

MIB = 1 << 20


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Reservations, Reservations]]:
    both = Reservations(tmp_path), Reservations(tmp_path)
    yield both
    for one in both:
        one.close()


def test_each_sees_what_the_others_told(two: tuple[Reservations, Reservations]) -> None:
    mine, theirs = two
    theirs.tell(5, 7)
    assert mine.of_others() == (5, 7)
    assert theirs.of_others() == (0, 0)
    theirs.tell(0, 1)
    assert mine.of_others() == (0, 1)


def test_what_a_killed_process_had_told_counts_no_more(tmp_path: Path) -> None:
    mine = Reservations(tmp_path)
    script = (
        "import sys; from pathlib import Path; from gpufs.cache.reservations import Reservations\n"
        "one = Reservations(Path(sys.argv[1])); one.tell(3, 4); print('told', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"told\n"
        assert mine.of_others() == (3, 4)
        other.kill()
        other.wait()
        assert mine.of_others() == (0, 0)
    successor = Reservations(tmp_path)  # takes the same slot: what was left there is not its own
    assert mine.of_others() == (0, 0)
    successor.close()
    mine.close()


def test_after_close_nothing_is_written_to_what_has_the_descriptor_now(tmp_path: Path) -> None:
    closed = Reservations(tmp_path)
    closed.close()
    victim = os.open(tmp_path / "victim", os.O_RDWR | os.O_CREAT)
    closed.tell(1, 1)
    assert os.fstat(victim).st_size == 0
    os.close(victim)


def test_two_processes_together_keep_one_limit(tmp_path: Path) -> None:
    """Neither knows from the catalogue what the other has in flight."""

    def space() -> Space:
        return Space(tmp_path, Size(bytes=100 * MIB), Size(bytes=0), lambda: 0, lambda: 0)

    one, other = space(), space()
    taken = 0
    while one.reserve(4 * MIB) | other.reserve(4 * MIB):
        taken += 1
        assert taken < 100
    assert not one.fits(4 * MIB) and not other.fits(4 * MIB)
    assert 88 * MIB <= one.in_flight + other.in_flight <= 100 * MIB
    for part in (one, other):
        part.close()
