"""What broken servers do to a read: repeated, ended within the deadline, and never wrong bytes."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from gpufs.errors import DeadlineExceeded, RemoteFailed
from gpufs.source.s3 import objects, signed
from tests.servers import Fault, FaultProxy, S3Endpoint

from .conftest import Made, Make

BODY = bytes(range(256)) * 200


@dataclass
class Lab:
    """One object on moto, behind a proxy that breaks things. `odd` is a key obstore cannot ask for."""

    proxy: FaultProxy
    bucket: str
    version: str
    make: Callable[..., Made]

    def source(self, deadline: float = 20.0) -> Made:
        return self.make(self.proxy.url, self.bucket, deadline=deadline)


@pytest.fixture
def lab(
    moto: S3Endpoint,
    aws_env: Callable[[S3Endpoint], None],
    bucket: Callable[[S3Endpoint], str],
    proxy: Callable[[S3Endpoint], FaultProxy],
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> Lab:
    aws_env(moto)
    name = bucket(moto)
    version = moto.put(name, {"k": BODY, "dir//odd": BODY})["k"]
    for module in (objects, signed):  # so that a stall is noticed within the patience of a test
        monkeypatch.setattr(module, "READ_TIMEOUT", 0.5)
    return Lab(proxy(moto), name, version, make)


@pytest.fixture(params=["k", "dir//odd"], ids=["obstore", "signed"])
def key(request: pytest.FixtureRequest) -> str:
    """A key for each of the two ways bytes come."""
    return str(request.param)


ONCE = [
    Fault("status", status=503, code="SlowDown"),
    Fault("status", status=500, code="InternalError"),
    Fault("status", status=429, code="TooManyRequests"),
    Fault("status", status=400, code="RequestTimeout"),
    Fault("reset"),
    Fault("close", after=1000),
    Fault("close", after=0),
    Fault("stall", after=1000),
    Fault("flip", after=1000),
]


@pytest.mark.parametrize(
    "fault", ONCE, ids=lambda f: f"{f.action}-{f.status if f.action == 'status' else f.after}"
)
def test_what_fails_twice_is_repeated_and_then_right(lab: Lab, key: str, fault: Fault) -> None:
    made = lab.source()
    lab.proxy.add(
        Fault(fault.action, "GET", after=fault.after, status=fault.status, code=fault.code, times=2)
    )
    assert made.read(key, lab.version, len(BODY)) == BODY
    assert made.metrics.retries.value == 2
    assert made.metrics.remote_errors.value == 2


def test_flipped_bytes_are_never_returned(lab: Lab, key: str) -> None:
    """Case 12: right length, wrong bytes."""
    made = lab.source(deadline=2.0)
    lab.proxy.add(Fault("flip", "GET", after=5))
    with pytest.raises(RemoteFailed, match="do not match their checksum"):
        made.read(key, lab.version, len(BODY))


def test_short_bodies_are_never_returned(lab: Lab, key: str) -> None:
    """Case 12: the connection closes early, for a whole object and for a range."""
    made = lab.source(deadline=1.5)
    lab.proxy.add(Fault("close", "GET", after=100))
    for offset, length in ((0, len(BODY)), (1000, 1000)):
        with pytest.raises(RemoteFailed):
            made.read(key, lab.version, len(BODY), offset, length)


@pytest.mark.parametrize(
    "fault",
    [Fault("stall", "GET", after=10), Fault("dribble", "GET", seconds=0.05)],
    ids=lambda f: str(f.action),
)
def test_a_read_never_outlives_its_deadline(lab: Lab, key: str, fault: Fault) -> None:
    """Case 11: for ever silent, and a byte now and then."""
    made = lab.source(deadline=2.5)
    lab.proxy.add(fault)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="in time"):
        made.read(key, lab.version, len(BODY))
    assert time.monotonic() - start < 3.5


def test_one_stalled_read_does_not_slow_the_others(lab: Lab) -> None:
    """Case 11."""
    made = lab.source()
    made.read("k", lab.version, len(BODY))
    lab.proxy.add(Fault("stall", "GET", after=10, times=1))
    stalled = threading.Thread(target=made.read, args=("k", lab.version, len(BODY)))
    stalled.start()
    with ThreadPoolExecutor(8) as pool:
        others = list(pool.map(lambda _: made.read("k", lab.version, len(BODY), 7, 100), range(40)))
    assert others == [BODY[7:107]] * 40
    stalled.join()
    assert made.metrics.retries.value == 1


def test_nobody_listening_is_said_and_counted(lab: Lab, key: str) -> None:
    made = lab.source(deadline=1.0)
    lab.proxy.refuse()
    with pytest.raises(RemoteFailed, match="cannot connect"):
        made.read(key, lab.version, len(BODY))
    assert made.metrics.retries.value > 0
    lab.proxy.listen()
    assert made.read(key, lab.version, len(BODY)) == BODY


def test_the_error_names_what_why_and_the_request(lab: Lab, key: str) -> None:
    made = lab.source(deadline=1.0)
    lab.proxy.add(Fault("status", "GET", status=503, code="SlowDown"))
    told = (
        rf"^reading s3://{lab.bucket}/{key}: the server answered 503 SlowDown: injected \(request id FAULT1\)"
    )
    with pytest.raises(RemoteFailed, match=told):
        made.read(key, lab.version, len(BODY))


def test_listing_survives_faults(lab: Lab) -> None:
    made = lab.source()
    for fault in ONCE:
        if fault.action != "flip":  # a listing has no checksum
            lab.proxy.add(
                Fault(
                    fault.action,
                    "LIST",
                    after=min(fault.after, 100),
                    status=fault.status,
                    code=fault.code,
                    times=1,
                )
            )
    entries = [e.name for page in made.source.list(b"") for e in page.entries]
    assert entries == [b"k", b"dir"]
    assert made.metrics.retries.value == len(ONCE) - 1


def test_every_read_is_counted_in_requests_and_bytes(lab: Lab) -> None:
    made = lab.source()
    made.read("k", lab.version, len(BODY))
    made.read("k", lab.version, len(BODY), 0, 10)
    counted = made.metrics.snapshot()
    assert (counted["remote_requests"], counted["remote_bytes"]) == (2, len(BODY) + 10)


def test_an_etag_that_is_no_md5_is_not_taken_for_one(
    lab: Lab, moto: S3Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Under SSE-KMS the ETag says nothing: bytes are accepted, said once, and not asked about again."""
    moto.put(lab.bucket, {"kms": BODY}, ServerSideEncryption="aws:kms")
    version = moto.client().head_object(Bucket=lab.bucket, Key="kms")["ETag"].strip('"')
    made = lab.source()
    lab.proxy.add(Fault("flip", "GET", after=0))  # moto's ETag is an MD5 even then: make it differ
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert made.read("kms", version, len(BODY))[1:] == BODY[1:]
    assert lab.proxy.counts() == {"GET": 3, "HEAD": 1}
    assert caplog.text.count("no longer checked") == 1


def test_a_stored_checksum_is_used_where_the_etag_says_nothing(lab: Lab, moto: S3Endpoint) -> None:
    import base64

    digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
    moto.put(
        lab.bucket,
        {"kms": BODY},
        ServerSideEncryption="aws:kms",
        ChecksumSHA256=digest,
        ChecksumAlgorithm="SHA256",
    )
    version = moto.client().head_object(Bucket=lab.bucket, Key="kms")["ETag"].strip('"')
    made = lab.source()
    lab.proxy.add(Fault("flip", "GET", after=0, times=2))
    assert made.read("kms", version, len(BODY)) == BODY
    assert made.metrics.retries.value == 2
