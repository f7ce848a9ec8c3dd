"""INIT with kernels old and new, and what is passed on."""

from __future__ import annotations

import errno
from struct import Struct

import pytest

from gpufs.fastpath import wire
from gpufs.fastpath.negotiation import LARGEST_READ, PAGE, READ_AHEAD, Agreement, agree

EVERYTHING = (1 << 32) - 1


def init_in(
    minor: int, flags: int, flags2: int = 0, read_ahead: int = 128 << 10, major: int = 7
) -> memoryview:
    """struct fuse_init_in as kernels of that minor send it: 16 bytes before 7.36, 64 since."""
    body = Struct("<IIII").pack(major, minor, read_ahead, flags)
    if minor >= 36:
        body += Struct("<I44x").pack(flags2)
    return memoryview(body)


def reply_of(request: memoryview, passthrough: bool = True) -> dict[str, int]:
    _, reply = agree(request, passthrough)
    names = "major minor read_ahead flags background congestion max_write gran max_pages align flags2 depth"
    return dict(zip(names.split(), wire.INIT_OUT.unpack(reply), strict=True))


def test_a_kernel_that_has_everything() -> None:
    agreement, _ = agree(init_in(45, EVERYTHING, EVERYTHING), True)
    assert agreement == Agreement(READ_AHEAD, passthrough=True, resend=True)
    reply = reply_of(init_in(45, EVERYTHING, EVERYTHING))
    assert (reply["major"], reply["minor"]) == (7, wire.MINOR), "no more than is spoken here"
    assert reply["flags2"] == wire.PASSTHROUGH | wire.HAS_RESEND and reply["depth"] == 1
    assert reply["max_write"] == LARGEST_READ and reply["max_pages"] == LARGEST_READ // PAGE
    assert not reply["flags"] & 1 << 14, "READDIRPLUS_AUTO asks for READDIR, which nobody answers"
    assert not reply["flags"] & 1 << 16, "a write-back cache cannot be combined with passthrough"
    assert not reply["flags"] & 1 << 17, "without OPEN there is nothing to count"


@pytest.mark.parametrize("flags2", [0, wire.HAS_RESEND, wire.PASSTHROUGH])
def test_what_the_kernel_does_not_offer_is_not_agreed(flags2: int) -> None:
    agreement, _ = agree(init_in(40, EVERYTHING, flags2), True)
    assert agreement.passthrough == bool(flags2 & wire.PASSTHROUGH)
    assert agreement.resend == bool(flags2 & wire.HAS_RESEND)
    reply = reply_of(init_in(40, EVERYTHING, flags2))
    assert reply["flags2"] == flags2 and reply["minor"] == 40
    assert reply["depth"] == (1 if flags2 & wire.PASSTHROUGH else 0)
    assert reply_of(init_in(40, 0, EVERYTHING))["flags"] == 0


def test_without_the_right_to_it_there_is_no_passthrough() -> None:
    agreement, _ = agree(init_in(45, EVERYTHING, EVERYTHING), False)
    assert not agreement.passthrough and agreement.resend
    reply = reply_of(init_in(45, EVERYTHING, EVERYTHING), passthrough=False)
    assert reply["flags2"] == wire.HAS_RESEND and reply["depth"] == 0


@pytest.mark.parametrize("minor", [23, 27, 31, 35])
def test_a_kernel_without_the_second_flags(minor: int) -> None:
    """Its INIT is shorter, and what lies behind it in the buffer is no part of it."""
    agreement, _ = agree(init_in(minor, EVERYTHING & ~wire.INIT_EXT), True)
    assert agreement == Agreement(READ_AHEAD, passthrough=False, resend=False)
    reply = reply_of(init_in(minor, EVERYTHING & ~wire.INIT_EXT))
    assert reply["minor"] == minor and reply["flags2"] == 0 and not reply["flags"] & wire.INIT_EXT


def test_another_protocol_is_refused() -> None:
    with pytest.raises(OSError, match=r"FUSE 8\.1") as caught:
        agree(init_in(1, EVERYTHING, major=8), True)
    assert caught.value.errno == errno.EPROTO


def test_a_reply_fits_into_memory_that_is_always_found() -> None:
    """Linux takes 17 pages of a message from scattered memory; the rest and a header are one piece."""
    in_one_piece = LARGEST_READ + wire.OUT_HEADER.size - 17 * PAGE
    assert in_one_piece + 512 <= 8 * PAGE, "more may not be found: the reply would be lost"
    assert LARGEST_READ % PAGE == 0


def test_the_kernel_reads_ahead_more_than_one_request() -> None:
    assert reply_of(init_in(45, EVERYTHING))["read_ahead"] == READ_AHEAD > LARGEST_READ
    assert reply_of(init_in(45, EVERYTHING, read_ahead=8 << 20))["read_ahead"] == 8 << 20


@pytest.mark.parametrize("passthrough", [True, False])
@pytest.mark.parametrize("resend", [True, False])
def test_an_agreement_survives_packing(passthrough: bool, resend: bool) -> None:
    agreement = Agreement(12345678, passthrough, resend)
    assert Agreement.unpack(agreement.pack()) == agreement


def test_what_the_filesystem_process_is_told() -> None:
    """An INIT as of minor 13, with which libfuse does not splice; no flags that need the second word."""
    hello = Agreement(1 << 20, True, True).hello()
    length, opcode, unique, _ = wire.IN_HEADER.unpack_from(hello)
    assert (length, opcode, unique) == (len(hello), wire.INIT, 0)
    major, minor, read_ahead, flags = Struct("<IIII").unpack_from(hello, wire.IN_HEADER_SIZE)
    assert (major, minor, read_ahead) == (7, 13, 1 << 20)
    assert flags & wire.DO_READDIRPLUS and not flags & wire.INIT_EXT
