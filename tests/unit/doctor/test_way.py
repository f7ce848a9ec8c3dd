"""`gpufs doctor`: the way to a source, and what it gives; each failing input has its own words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from gpufs.doctor import supply, way
from gpufs.errors import (
    AccessDenied,
    DeadlineExceeded,
    GpufsError,
    NotFound,
    ObjectArchived,
    RemoteFailed,
)
from gpufs.source import Abilities, Entry, Kind, ObjectRef, Origin, Page
from gpufs.source.retry import Transient
from gpufs.source.web import Answer
from tests.unit.doctor.test_host import assert_is

NOW = 1_790_000_000.0


def answer(status: int = 403, **headers: str) -> Answer:
    return Answer(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, memoryview(b""), ""
    )


def test_endpoints() -> None:
    url = "https://host:9000/bucket"
    assert_is(way.endpoint(url, answer(403)), "ok", "host:9000", "with TLS")
    assert_is(way.endpoint(url, answer(502)), "warn", "502")
    assert_is(way.endpoint(url, Transient("cannot connect to host")), "FAIL", "curl -I https://host:9000")
    assert_is(way.endpoint(url, RemoteFailed("TLS: the certificate is not trusted")), "FAIL", "ca_bundle=")
    assert "hunter2" not in str(way.endpoint(url, Transient("proxy http://me:hunter2@proxy refused")))


@pytest.mark.parametrize(
    "off, state",
    [(0, "ok"), (-59, "ok"), (60, "ok"), (-62, "warn"), (90, "warn"), (-901, "FAIL"), (1000, "FAIL"),
     (-86400, "FAIL")],
)  # fmt: skip
def test_clocks(off: float, state: str) -> None:
    """`off`: seconds that this host is ahead of the server, which tells whole seconds."""
    found = way.clock(answer(date=formatdate(NOW - off, usegmt=True)), NOW, NOW + 0.1)
    assert_is(found, state, *(["timedatectl"] if state != "ok" else []))


def test_a_server_without_a_clock() -> None:
    assert_is(way.clock(answer(), NOW, NOW), "ok", "does not tell")
    assert_is(way.clock(answer(date="yesterday"), NOW, NOW), "ok", "does not tell")


def test_regions() -> None:
    assert_is(
        way.bucket_region(answer(x_amz_bucket_region="eu-west-1"), "us-east-1"), "FAIL", "region=eu-west-1"
    )
    assert_is(way.bucket_region(answer(x_amz_bucket_region="eu-west-1"), None), "ok", "eu-west-1")
    assert_is(way.bucket_region(answer(), "us-east-1"), "ok", "tells none")


class Credentials:
    """Whatever a source says of its credentials."""

    def __init__(self, found: Origin | Exception | None) -> None:
        self._found = found

    def address(self) -> tuple[str, str | None]:
        return "http://host", None

    def origin(self) -> Origin | None:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_credentials() -> None:
    def found(what: Origin | Exception | None, state: str, *says: str) -> None:
        assert_is(way.credentials(Credentials(what), NOW), state, *says)

    found(None, "ok", "not signed")
    found(Origin("env", None), "ok", "from env")
    found(Origin("iam-role", NOW + 600), "ok", "good until 2026-09-21")
    found(Origin("a shared access signature", NOW + 600), "warn", "renew")
    found(Origin("assume-role", NOW - 1), "FAIL", "ended 2026-09-21")
    found(AccessDenied("no AWS credentials found"), "FAIL", "no AWS credentials found")
    found(Transient("the metadata service is silent"), "FAIL", "provider")


class Store:
    """A source of these files."""

    id = "store"
    abilities = Abilities(flat_listing=True, pins_versions=True)

    def __init__(self, files: dict[bytes, int], error: GpufsError | None = None) -> None:
        self.files, self.error, self.listed = files, error, 0

    def check(self) -> None:
        self.listed += 1
        if self.error is not None:
            raise self.error

    def list(self, directory: bytes) -> Iterator[Page]:
        entries = [Entry(name, Kind.FILE, size, 0, "v") for name, size in self.files.items() if not directory]
        yield Page(directory, [*entries, Entry(b"d", Kind.DIRECTORY)] if not directory else [], [], last=True)

    def read(self, ref: ObjectRef, offset: int, length: int, **_: float) -> memoryview:
        if self.error is not None:
            raise self.error
        time.sleep(0.001)
        return memoryview(bytes(length))


@pytest.mark.parametrize(
    "error, remedy",
    [(AccessDenied("403"), "right to list"), (NotFound("no such bucket"), "name"),
     (DeadlineExceeded("silence"), "network"), (RemoteFailed("500"), "server")],
)  # fmt: skip
def test_a_source_that_cannot_be_listed(error: GpufsError, remedy: str) -> None:
    assert_is(supply.listing(Store({}, error)), "FAIL", str(error), remedy)


def test_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store({})
    assert_is(supply.listing(store), "ok", "takes")
    assert store.listed == 5
    monkeypatch.setattr(supply, "_FAR", 0.0)
    assert_is(supply.listing(store), "warn", "nearer")


def test_a_sample_has_only_files_with_bytes() -> None:
    found = supply.find_objects(Store({b"a": 5, b"empty": 0}))
    assert found == [ObjectRef(b"a", "v", 5)]


def test_reading_for_a_while() -> None:
    store = Store({})
    sample = [ObjectRef(b"a", "v", 10 << 20), ObjectRef(b"b", "v", 1000)]
    brought = supply.read(store, sample, 1.0)
    assert brought.requests > 10 and 1.0 <= brought.seconds < 10
    assert_is(supply.throughput(brought), "ok", "MB/s", "16 at once")


@pytest.mark.parametrize(
    "error, says",
    [(AccessDenied("403"), "right to read"), (RemoteFailed("500"), "look at the server"),
     (ObjectArchived("in the archive"), "restore")],
)  # fmt: skip
def test_a_source_that_cannot_be_read(error: GpufsError, says: str) -> None:
    brought = supply.read(Store({}, error), [ObjectRef(b"a", "v", 10)], 0.05)
    assert_is(supply.throughput(brought), "warn" if isinstance(error, ObjectArchived) else "FAIL", says)


def test_an_empty_source() -> None:
    assert_is(supply.throughput(None), "ok", "no file")
