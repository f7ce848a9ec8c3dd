"""Failures in, gpufs errors out: what is repeated, what is final, and what the person is told."""

from __future__ import annotations

import pytest

from gpufs.errors import AccessDenied, NotFound, ObjectArchived, RemoteFailed, VersionGone
from gpufs.source.retry import Transient
from gpufs.source.s3.translate import (
    CredentialsRefused,
    Subject,
    WrongRegion,
    of_obstore,
    refusal,
    refusal_of_answer,
)

SUBJECT = Subject("b", b"dir/it's")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (500, "InternalError", Transient),
        (502, "", Transient),
        (503, "SlowDown", Transient),
        (504, "", Transient),
        (429, "TooManyRequests", Transient),
        (400, "RequestTimeout", Transient),
        (403, "AccessDenied", AccessDenied),
        (403, "ExpiredToken", CredentialsRefused),
        (400, "ExpiredToken", CredentialsRefused),
        (403, "InvalidAccessKeyId", CredentialsRefused),
        (403, "SignatureDoesNotMatch", CredentialsRefused),
        (401, "", CredentialsRefused),
        (403, "", CredentialsRefused),
        (403, "RequestTimeTooSkewed", AccessDenied),
        (403, "InvalidObjectState", ObjectArchived),
        (404, "NoSuchKey", NotFound),
        (404, "NoSuchBucket", NotFound),
        (412, "PreconditionFailed", VersionGone),
        (416, "InvalidRange", VersionGone),
        (301, "PermanentRedirect", WrongRegion),
        (400, "AuthorizationHeaderMalformed", WrongRegion),
        (400, "InvalidArgument", RemoteFailed),
        (501, "NotImplemented", RemoteFailed),
    ],
)
def test_each_answer_has_one_meaning(status: int, code: str, kind: type[Exception]) -> None:
    assert type(refusal(SUBJECT, status, code, "", "")) is kind


def test_an_archived_object_says_how_to_restore_it() -> None:
    """Case 7."""
    said = str(refusal(SUBJECT, 403, "InvalidObjectState", "", ""))
    assert "aws s3api restore-object --bucket b --key 'dir/it'\"'\"'s' --restore-request" in said


def test_the_request_id_of_the_provider_is_told() -> None:
    error = refusal_of_answer(
        SUBJECT, 503, {"x-amz-request-id": "R1"}, b"<Error><Code>SlowDown</Code></Error>"
    )
    assert str(error) == "the server answered 503 SlowDown (request id R1)"


def test_the_region_comes_from_header_or_body() -> None:
    for headers, body in (({"x-amz-bucket-region": "eu-west-1"}, b""), ({}, b"<Region>eu-west-1</Region>")):
        error = refusal_of_answer(SUBJECT, 301, headers, body)
        assert isinstance(error, WrongRegion)
        assert error.region == "eu-west-1"
        assert "region=eu-west-1" in str(error)


def test_a_signature_error_does_not_repeat_what_the_server_quotes() -> None:
    body = (
        b"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKID</AWSAccessKeyId>"
        b"<StringToSign>STS</StringToSign><RequestId>R</RequestId></Error>"
    )
    said = str(refusal_of_answer(SUBJECT, 403, {}, body))
    assert "AKID" not in said
    assert "STS" not in said


def test_text_that_obstore_may_come_to_say_is_final_and_short() -> None:
    error = of_obstore(ValueError("something new\nDebug source: ..."), SUBJECT)
    assert isinstance(error, RemoteFailed)
    assert str(error) == "s3://b/dir/it's: something new"
