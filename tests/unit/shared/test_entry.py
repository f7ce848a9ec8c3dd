"""Entries of the shared cache: only the right bytes of the right part are ever taken for it."""

from __future__ import annotations

from gpufs.shared.entry import CLAIM, DROPPED, MAGIC, TOKEN, Found, Part, pack, part_of, unpack
from gpufs.source.base import ObjectRef

REF = ObjectRef(b"dir/a\xff.jpeg", "0123abcd", 1000)
DIGEST = bytes(range(16))
DATA = memoryview(bytes(range(250)) * 4)


def part(**changes: object) -> Part:
    return part_of("s3://bucket/", DIGEST, REF._replace(**changes))  # type: ignore[arg-type]


def entry() -> bytearray:
    return bytearray(pack(part(), DATA))


def test_what_was_packed_is_found() -> None:
    assert unpack(part(), memoryview(entry())) == DATA
    assert len(entry()) == part().entry_size


def test_a_changed_byte_anywhere_is_found() -> None:
    for position in range(len(entry())):
        damaged = entry()
        damaged[position] ^= 1
        assert unpack(part(), memoryview(damaged)) is Found.BAD, position


def test_a_body_of_another_length_is_bad() -> None:
    for body in (b"", b"x", entry()[:-1], entry() + b"x", entry()[: part().entry_size // 2]):
        assert unpack(part(), memoryview(body)) is Found.BAD


def test_an_entry_of_something_else_is_bad() -> None:
    """Also when it has the same size and lies under the same name."""
    others = [
        part(path=b"dir/b\xff.jpeg"),
        part(version="0123abce"),
        part_of("s3://other_/", DIGEST, REF),
        part_of("s3://bucket/", DIGEST, REF, 0, 1000),
        part_of("s3://bucket/", DIGEST, REF._replace(size=2000), None)._replace(size=1000),
    ]
    for other in others:
        assert len(DATA) == other.size
        assert unpack(part(), memoryview(pack(other, DATA))) is Found.BAD, other


def test_chunks_of_one_object_are_told_apart() -> None:
    first, second = (part_of("s3://bucket/", DIGEST, REF, number, 500) for number in (0, 1))
    assert first.name != second.name != part().name
    assert unpack(second, memoryview(pack(first, DATA[:500]))) is Found.BAD
    assert unpack(first, memoryview(pack(first, DATA[:500]))) == DATA[:500]


def test_claims_are_no_entries() -> None:
    claim = CLAIM + b"\x01" * TOKEN
    assert unpack(part(), memoryview(claim)) is Found.CLAIMED
    assert unpack(part(), memoryview(DROPPED)) is Found.DROPPED
    assert unpack(part(), memoryview(MAGIC + b"\x01" * TOKEN)) is Found.BAD


def test_a_name_says_nothing_of_the_dataset() -> None:
    assert part().name == f"00/{DIGEST.hex()}"
