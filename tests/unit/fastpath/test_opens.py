"""The open-mode table: what one process writes, the next one reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpufs.fastpath.opens import CACHED, PASSTHROUGH, OpenTable
from tests.unit.fastpath.kernel import new_table

BIGGEST_INODE = (1 << 40) - 1
BIGGEST_ID = (1 << 31) - 1


@pytest.fixture
def fd() -> Iterator[int]:
    fd = new_table()
    yield fd
    os.close(fd)


def entries(table: OpenTable, inodes: range) -> dict[int, tuple[int, int, int]]:
    found = ((i, table.get(i)) for i in inodes)
    return {i: (e.mode, e.backing_id, e.opens) for i, e in found if e is not None}


def test_a_new_table_is_empty(fd: int) -> None:
    table = OpenTable(fd)
    assert len(table) == 0 and table.get(1) is None and table.doubts() == {}
    table.close()


def test_a_second_process_finds_what_the_first_has_entered(fd: int) -> None:
    """The largest numbers there are too."""
    table = OpenTable(fd)
    table.count(table.enter(BIGGEST_INODE, PASSTHROUGH, BIGGEST_ID), 10_000)
    table.count(table.enter(2, CACHED, 0), 1)
    table.enter(3, CACHED, 0)
    table.forget(3)
    table.close()
    again = OpenTable(fd)
    assert len(again) == 2
    assert entries(again, range(4)) == {2: (CACHED, 0, 1)}
    biggest = again.get(BIGGEST_INODE)
    assert biggest is not None
    assert (biggest.mode, biggest.backing_id, biggest.opens) == (PASSTHROUGH, BIGGEST_ID, 10_000)
    again.close()


def test_a_full_table_says_so_and_has_room_again(fd: int) -> None:
    table = OpenTable(fd)
    for inode in range(1, 65):
        table.enter(inode, CACHED, 0)
    with pytest.raises(OSError) as caught:
        table.enter(100, CACHED, 0)
    assert caught.value.errno == errno.ENFILE
    assert len(table) == 64 and table.get(100) is None
    table.forget(7)
    table.enter(100, PASSTHROUGH, 5)
    table.close()
    again = OpenTable(fd)
    assert len(again) == 64 and again.get(100) is not None and again.get(7) is None
    with pytest.raises(OSError, match="full"):
        again.enter(7, CACHED, 0)
    again.close()


def test_a_doubt_is_found_once_it_was_counted(fd: int) -> None:
    """Noted only: nothing to undo. Counted: to undo. Settled: the kernel has its answer."""
    table = OpenTable(fd)
    entry = table.enter(9, CACHED, 0)
    table.doubt(0, 1234, 9, 0, 1)
    assert table.doubts() == {}
    table.count(entry, 1)
    table.doubt(1, 77, 5, 1, 0)  # the last release of an inode, which was taken out
    again = OpenTable(fd)
    assert again.doubts() == {1234: (0, 9, 1), 77: (1, 5, -1)}
    again.settle(0)
    assert again.doubts() == {77: (1, 5, -1)}
    again.close()
    table.close()


def test_the_agreement_is_kept(fd: int) -> None:
    table = OpenTable(fd)
    table.set_agreement(b"twelve bytes")
    table.enter(1, CACHED, 0)
    table.close()
    again = OpenTable(fd)
    assert again.agreement() == b"twelve bytes"
    again.close()


class Model(RuleBasedStateMachine):
    """Against a dictionary, with processes that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = new_table()
        self.table = OpenTable(self.fd)
        self.known: dict[int, tuple[int, int, int]] = {}

    @rule(inode=st.integers(1, 70), mode=st.sampled_from([CACHED, PASSTHROUGH]), backing=st.integers(1, 99))
    def enter(self, inode: int, mode: int, backing: int) -> None:
        if inode in self.known:
            return
        if len(self.known) == 64:
            with pytest.raises(OSError):
                self.table.enter(inode, mode, backing)
            return
        self.table.enter(inode, mode, backing)
        self.known[inode] = (mode, backing, 0)

    @rule(pick=st.randoms(use_true_random=False), opens=st.integers(0, 1 << 20))
    def count(self, pick, opens: int) -> None:
        if self.known:
            inode = pick.choice(sorted(self.known))
            entry = self.table.get(inode)
            assert entry is not None
            self.table.count(entry, opens)
            self.known[inode] = (*self.known[inode][:2], opens)

    @rule(pick=st.randoms(use_true_random=False))
    def forget(self, pick) -> None:
        if self.known:
            inode = pick.choice(sorted(self.known))
            self.table.forget(inode)
            del self.known[inode]

    @rule()
    def restart(self) -> None:
        self.table.close()
        self.table = OpenTable(self.fd)

    @invariant()
    def same(self) -> None:
        assert entries(self.table, range(71)) == self.known and len(self.table) == len(self.known)

    def teardown(self) -> None:
        self.table.close()
        os.close(self.fd)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
