"""Opens and releases in any order, by both threads, across processes: the kernel never sees two modes."""

from __future__ import annotations

import errno
import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpufs.handoff.handles import OURS
from tests.mounts import wait_until
from tests.unit.fastpath.kernel import Kernel, Killed, Process, new_table

INODE = 7


def descriptors() -> set[str]:
    """What is open, by number and what it leads to; without what earlier tests have left as garbage."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


@pytest.fixture
def fd() -> Iterator[int]:
    before = descriptors()
    fd = new_table()
    yield fd
    os.close(fd)
    # Threads of earlier tests may have one open for a moment.
    wait_until(lambda: descriptors() <= before, f"{descriptors() - before} to be closed", 5)


def open_hit(process: Process) -> None:
    unique = process.kernel.ask_open(INODE)
    if not process.hit(unique):
        process.by_filesystem(unique, hand=True)


def open_handed(process: Process) -> None:
    unique = process.kernel.ask_open(INODE)
    if not process.miss(unique):
        process.by_filesystem(unique, hand=True)


def open_partial(process: Process) -> None:
    unique = process.kernel.ask_open(INODE)
    if not process.miss(unique):
        process.by_filesystem(unique, hand=False)


def open_raced(process: Process) -> None:
    """The filesystem process was asked, and before its answer another open finds the object in the cache."""
    slow = process.kernel.ask_open(INODE)
    asked = not process.miss(slow)
    open_hit(process)
    if asked:
        process.by_filesystem(slow, hand=False)


def open_interrupted(process: Process) -> None:
    unique = process.kernel.ask_open(INODE)
    process.kernel.interrupted.add(unique)
    if not process.hit(unique):
        process.by_filesystem(unique, hand=False)


def release_first(process: Process) -> None:
    if process.kernel.opens:
        process.release(process.kernel.ask_release(0))


def release_last(process: Process) -> None:
    if process.kernel.opens:
        process.release(process.kernel.ask_release(-1))


STEPS: list[Callable[[Process], None]] = [
    open_hit, open_handed, open_partial, open_raced, open_interrupted, release_first, release_last,
]  # fmt: skip


@pytest.mark.parametrize("passthrough", [True, False])
def test_every_order_of_four_steps(fd: int, passthrough: bool) -> None:
    """After each the table is right and no id, entry or descriptor is kept for nobody; then it is empty."""
    for steps in itertools.product(STEPS, repeat=4):
        kernel = Kernel()
        process = Process(kernel, fd, passthrough=passthrough)
        for step in steps:
            step(process)
            process.check()
        while kernel.opens:
            release_last(process)
        process.check()
        assert not kernel.asked
        process.die()


# Not open_interrupted: such an OPEN does not come again, and whether it was answered cannot be known.
@pytest.mark.parametrize("step", [step for step in STEPS if step is not open_interrupted])
@pytest.mark.parametrize("before", [(), (open_hit,), (open_partial,), (open_hit, open_hit)])
def test_killed_at_any_store(
    fd: int, step: Callable[[Process], None], before: tuple[Callable[[Process], None], ...]
) -> None:
    """The next process answers what is asked again; each open and release is counted once, none fails.

    Also when the next one is killed too, as long as one request was in doubt. No backing id is left.
    """
    for first, second in itertools.product(range(12), (None,) if step is open_raced else (None, 0, 2, 5)):
        os.truncate(fd, 0)
        os.truncate(fd, 8 * (512 + 3 * 64))
        kernel = Kernel()
        process = Process(kernel, fd)
        for earlier in before:
            earlier(process)
        killed = _killed_after(kernel, first, lambda process=process: step(process))
        process.die()
        process = Process(kernel, fd)
        if second is not None and killed:
            _killed_after(kernel, second, process.answer_again)
            process.die()
            process = Process(kernel, fd)
        process.answer_again()
        for probe in (open_hit, open_partial):
            probe(process)
        while kernel.opens:
            release_first(process)
        assert not kernel.asked
        if any(process.table.get(i) is not None for i in range(10)):
            entry = process.table.get(INODE)  # prepared for an open that was then answered otherwise
            assert entry is not None and entry.opens == 0
            open_hit(process)
            release_first(process)
        assert len(process.table) == 0
        assert not kernel.registered
        process.die()


def _killed_after(kernel: Kernel, steps: int, work: Callable[[], None]) -> bool:
    left = iter(range(steps))

    def step() -> None:
        if next(left, None) is None:
            raise Killed

    kernel.step = step
    try:
        work()
    except Killed:
        return True
    finally:
        kernel.step = lambda: None
    return False


def test_a_file_that_cannot_back_is_read_through_the_filesystem_process(fd: int) -> None:
    """Its handle is that process's own, and that process is told to keep it open."""
    kernel = Kernel()
    kernel.can_back = False
    process = Process(kernel, fd)
    unique = kernel.ask_open(INODE)
    assert not process.hit(unique)
    assert process.by_filesystem(unique, hand=True) is True
    assert kernel.opens == [(INODE, INODE, "cached", 0)]
    process.check()
    release_first(process)
    process.check()
    process.die()


def test_a_handed_file_is_not_kept_by_the_filesystem_process(fd: int) -> None:
    """Neither is one that another open made passthrough meanwhile, nor one nobody waits for any more."""
    kernel = Kernel()
    process = Process(kernel, fd)
    assert process.by_filesystem(kernel.ask_open(INODE), hand=True) is False
    assert process.by_filesystem(kernel.ask_open(INODE), hand=False) is False
    assert [handle for _, handle, _, _ in kernel.opens] == [INODE | OURS] * 2
    interrupted = kernel.ask_open(INODE + 1)
    kernel.interrupted.add(interrupted)
    assert process.by_filesystem(interrupted, hand=False) is False
    process.check()
    process.die()


def test_without_passthrough_reads_have_a_descriptor_until_the_last_release(fd: int) -> None:
    kernel = Kernel()
    process = Process(kernel, fd, passthrough=False)
    open_hit(process)
    open_hit(process)
    release_first(process)
    held = process.opening.file_of(INODE)
    assert held is not None and os.pread(held, 4, 0) == b"\x7fELF"
    release_first(process)
    assert process.opening.file_of(INODE) is None
    process.die()


@pytest.mark.parametrize("passthrough", [True, False])
def test_a_full_table_is_enfile_and_nothing_else_breaks(fd: int, passthrough: bool) -> None:
    kernel = Kernel()
    process = Process(kernel, fd, passthrough=passthrough)
    for inode in range(100, 164):
        assert process.hit(kernel.ask_open(inode))
    unique = kernel.ask_open(1)
    assert not process.hit(unique)
    assert process.by_filesystem(unique, hand=True) is False
    assert kernel.refused == [errno.ENFILE]
    process.check()
    release_first(process)
    assert process.hit(kernel.ask_open(1))
    process.check()
    process.die()


class Mixing(RuleBasedStateMachine):
    """Many inodes, answers of the filesystem process that come late, evictions, interruptions, restarts."""

    @initialize(passthrough=st.booleans())
    def begin(self, passthrough: bool) -> None:
        self.passthrough = passthrough
        self.fd = new_table()
        self.kernel = Kernel()
        self.process = Process(self.kernel, self.fd, passthrough=passthrough)
        self.forwarded: list[int] = []

    @rule(inode=st.integers(1, 3), cached=st.booleans(), interrupted=st.booleans())
    def open(self, inode: int, cached: bool, interrupted: bool) -> None:
        unique = self.kernel.ask_open(inode)
        if interrupted:
            self.kernel.interrupted.add(unique)
        if not (self.process.hit if cached else self.process.miss)(unique):
            self.forwarded.append(unique)

    @rule(pick=st.integers(0, 5), hand=st.booleans())
    def answer(self, pick: int, hand: bool) -> None:
        if self.forwarded:
            self.process.by_filesystem(self.forwarded.pop(pick % len(self.forwarded)), hand)

    @rule(pick=st.integers(0, 9))
    def release(self, pick: int) -> None:
        if self.kernel.opens:
            self.process.release(self.kernel.ask_release(pick % len(self.kernel.opens)))

    @rule(hand=st.booleans())
    def restart(self, hand: bool) -> None:
        self.process.die()
        self.process = Process(self.kernel, self.fd, passthrough=self.passthrough)
        self.forwarded.clear()
        self.process.answer_again(hand)

    @invariant()
    def right(self) -> None:
        self.process.check()

    def teardown(self) -> None:
        if hasattr(self, "fd"):
            self.process.die()
            os.close(self.fd)


TestMixing = Mixing.TestCase
TestMixing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
