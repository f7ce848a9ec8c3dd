"""What the two ends of the fetch process's socket say to each other arrives as it was meant."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpufs import errors
from gpufs.errors import GpufsError
from gpufs.fetch.messages import (
    MESSAGE_SIZE,
    MOST_NAMED,
    NOBODY,
    NOTHING,
    Named,
    Through,
    Wanted,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)
from gpufs.source.base import ObjectRef
from gpufs.source.s3.translate import CredentialsRefused, WrongRegion

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GpufsError)]
U64 = st.integers(0, 2**64 - 1)


WANTED = st.builds(
    Wanted,
    st.binary(min_size=16, max_size=16).filter(lambda digest: 0 < sum(digest) < 16 * 255),
    st.builds(ObjectRef, st.binary(max_size=4095), st.text(max_size=100), U64),
    U64,
)


NAMED = st.just(NOBODY) | st.builds(
    Named, st.integers(1, 64), st.lists(U64, max_size=MOST_NAMED).map(tuple), U64
)


@given(U64, st.none() | WANTED | NAMED)
def test_requests_arrive_as_they_were_sent(number: int, wanted: Wanted | Named | None) -> None:
    message = pack_request(number, wanted)
    assert unpack_request(message) == (number, wanted)
    assert len(message) <= MESSAGE_SIZE


@given(
    U64,
    st.builds(Through, *[U64] * len(NOTHING)),
    st.none() | st.builds(lambda kind, text: kind(text), st.sampled_from(KINDS), st.text(max_size=900)),
)
def test_answers_arrive_as_they_were_sent(number: int, through: Through, error: GpufsError | None) -> None:
    number_, error_, through_ = unpack_answer(pack_answer(number, error, through))
    assert (number_, type(error_), through_) == (number, type(error), through)
    if error is not None:
        # what is cut off is the end, and only of very long texts
        assert str(error).startswith(str(error_)) and len(str(error_)) >= min(len(str(error)), 800)


@given(st.text(st.characters(), min_size=1, max_size=5000))
def test_no_text_is_too_odd_or_too_long_for_a_message(text: str) -> None:
    """Lone surrogates, as a name that is no UTF-8 gives them, would end the process."""
    message = pack_answer(1, errors.NotFound(text))
    assert len(message) <= MESSAGE_SIZE
    assert isinstance(unpack_answer(message)[1], errors.NotFound)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (CredentialsRefused("renew them"), errors.AccessDenied),
        (WrongRegion("elsewhere", "eu-north-1"), errors.RemoteFailed),
    ],
)
def test_what_a_source_derives_for_itself_arrives_as_the_error_it_is_one_of(
    error: GpufsError, seen: type[GpufsError]
) -> None:
    """A reader must see EACCES for refused credentials, whichever process met the refusal."""
    arrived = unpack_answer(pack_answer(1, error))[1]
    assert type(arrived) is seen and str(arrived) == str(error)
    assert errors.errno_of(arrived) == errors.errno_of(error)
