"""An inode comes back from its bytes as it went in, in few bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.index.records import Inode, decode, digest_of, encode, place_of
from gpufs.source.base import Kind

_hex = st.text("0123456789abcdef", min_size=32, max_size=32)
_versions = st.one_of(
    _hex,
    _hex.map(str.upper),
    _hex.map(lambda text: text + "-12"),
    _hex.map(lambda text: " " + text[1:]),
    st.text(max_size=80),
    st.just("\udcff"),
)
_owner = st.none() | st.integers(0, 2**32 - 1)


@st.composite
def inodes(draw: st.DrawFn) -> Inode:
    kind = draw(st.sampled_from(Kind))
    return Inode(
        draw(st.integers(1, 2**64 - 1)),
        draw(st.integers(1, 2**64 - 1)),
        draw(st.binary(max_size=255)),
        kind,
        draw(st.integers(0, 2**63)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(_versions),
        draw(st.binary(min_size=16, max_size=16)) if kind is Kind.FILE else b"",
        draw(st.none() | st.integers(0, 0o7777)),
        draw(_owner),
        draw(_owner),
        draw(st.binary(max_size=4096)) if kind is Kind.SYMLINK else b"",
    )


@given(inodes())
def test_an_inode_survives_encoding(inode: Inode) -> None:
    assert decode(inode.number, encode(inode)) == inode
    assert place_of(encode(inode)) == (inode.parent, inode.name)


def test_an_s3_file_takes_69_bytes() -> None:
    inode = Inode(2, 1, b"000001.jpeg", Kind.FILE, 9, 9, "ab" * 16, b"d" * 16, None, None, None, b"")
    assert len(encode(inode)) == 26 + 11 + 16 + 16


@pytest.mark.parametrize(
    "inode",
    [
        Inode(2, 1, b"n", Kind.FILE, 0, 0, "", b"", None, None, None, b""),
        Inode(2, 1, b"n", Kind.DIRECTORY, 0, 0, "", b"d" * 16, None, None, None, b""),
        Inode(2, 1, b"n" * 256, Kind.DIRECTORY, 0, 0, "", b"", None, None, None, b""),
        Inode(2, 1, b"n", Kind.FILE, 0, 0, "", b"d" * 16, None, None, None, b"target"),
    ],
)
def test_what_could_not_be_read_back_is_refused(inode: Inode) -> None:
    with pytest.raises(ValueError, match="n"):
        encode(inode)


def test_the_digest_depends_on_source_path_version_and_size() -> None:
    digests = {
        digest_of("s3://a", b"x/y", "v", 1),
        digest_of("s3://b", b"x/y", "v", 1),
        digest_of("s3://a", b"x/z", "v", 1),
        digest_of("s3://a", b"x/y", "w", 1),
        digest_of("s3://a", b"x/y", "v", 2),
    }
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {16}
