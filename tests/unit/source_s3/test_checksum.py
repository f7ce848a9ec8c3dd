"""Checksums of whole objects: which are believed, and what they say."""

from __future__ import annotations

import pytest

from gpufs.source.s3.checksum import etag_is_keyed, is_md5, looks_like_md5, matches_stored

DATA = b"hello"
RIGHT = {
    "x-amz-checksum-sha256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
    "x-amz-checksum-sha1": "qvTGHdzF6KLavt4PO0gs2a6pQ00=",
    "x-amz-checksum-crc32": "NhCmhg==",
}


def test_md5_of_an_etag() -> None:
    assert is_md5(DATA, "5d41402abc4b2a76b9719d911017c592")
    assert not is_md5(b"hellp", "5d41402abc4b2a76b9719d911017c592")


@pytest.mark.parametrize("etag", ["5d41402abc4b2a76b9719d911017c592-3", "5d41", "", "z" * 32])
def test_etags_of_uploads_in_parts_are_no_md5(etag: str) -> None:
    assert not looks_like_md5(etag)


@pytest.mark.parametrize("name", RIGHT)
def test_stored_checksums_decide(name: str) -> None:
    assert matches_stored(DATA, {name: RIGHT[name]}) is True
    assert matches_stored(b"hellp", {name: RIGHT[name]}) is False


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="},
        {"x-amz-checksum-crc32": RIGHT["x-amz-checksum-crc32"] + "-2"},
        RIGHT | {"x-amz-checksum-type": "COMPOSITE"},
    ],
)
def test_checksums_of_parts_or_of_unknown_kind_say_nothing(headers: dict[str, str]) -> None:
    assert matches_stored(DATA, headers) is None


def test_only_encryption_with_keys_of_its_own_changes_the_etag() -> None:
    assert etag_is_keyed({"x-amz-server-side-encryption": "aws:kms"})
    assert etag_is_keyed({"x-amz-server-side-encryption-customer-algorithm": "AES256"})
    assert not etag_is_keyed({"x-amz-server-side-encryption": "AES256"})
    assert not etag_is_keyed({})
