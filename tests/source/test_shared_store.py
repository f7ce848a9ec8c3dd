"""The way to a shared cache, on real servers: who claims first wins; what is no answer is told from one."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import pytest

from gpufs.metrics import Metrics
from gpufs.options import Options
from gpufs.shared import State, Tier, open_tier, part_of
from gpufs.shared.wire import Exchange, Wire
from gpufs.source import open_source
from gpufs.source.base import ObjectRef
from gpufs.source.s3 import S3Settings, S3Source
from tests.servers import Fault, FaultProxy, S3Endpoint

PATIENCE = 20.0
Buckets = Callable[[S3Endpoint], str]


@pytest.fixture(params=["weed", "moto"])
def server(request: pytest.FixtureRequest, aws_env: Callable[[S3Endpoint], None]) -> S3Endpoint:
    endpoint: S3Endpoint = request.getfixturevalue(request.param)
    aws_env(endpoint)
    return endpoint


def wire_to(url: str, bucket: str) -> Wire:
    source = open_source(f"s3://{bucket}/a prefix", S3Settings(endpoint_url=url), Metrics())
    assert isinstance(source, S3Source)
    wire = Wire(source)
    until(wire, wire.ready)
    return wire


def until(wire: Wire | Tier, condition: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(wire, select.POLLIN)
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        poll.poll(20)
        wire.turn()


def ask(wire: Wire, method: str, name: str, **options: object) -> Exchange:
    done: list[Exchange] = []
    patience = options.pop("patience", PATIENCE)
    exchange = Exchange(method, name, done.append, patience, whole=patience, **options)  # type: ignore[arg-type]
    wire.send(exchange)
    until(wire, lambda: done)
    return exchange


def test_what_was_put_is_got_and_its_age_is_told(server: S3Endpoint, bucket: Buckets) -> None:
    wire = wire_to(server.url, bucket(server))
    assert ask(wire, "GET", "ab/1").status == 404
    for body in (b"first", b"second" * 100_000, b""):
        assert ask(wire, "PUT", "ab/1", upload=body).status == 200
        got = ask(wire, "GET", "ab/1", limit=1 << 20)
        assert (got.status, bytes(got.body)) == (200, body)
    assert 0 <= got.age <= 5


def test_a_body_that_is_longer_than_it_should_be_is_not_read_to_its_end(
    server: S3Endpoint, bucket: Buckets
) -> None:
    """And is an answer, not a failure of the server."""
    wire = wire_to(server.url, bucket(server))
    ask(wire, "PUT", "long", upload=b"x" * 3_000_000)
    got = ask(wire, "GET", "long", limit=1000)
    assert got.status == 200 and len(got.body) == 1001
    assert ask(wire, "GET", "long", limit=3_000_000).body == b"x" * 3_000_000


def test_of_those_who_claim_at_once_one_wins(
    weed: S3Endpoint, bucket: Buckets, aws_env: Callable[..., None]
) -> None:
    aws_env(weed)
    name = bucket(weed)
    wires = [wire_to(weed.url, name) for _ in range(4)]
    for number in range(20):
        done: list[Exchange] = []
        for wire in wires:
            wire.send(
                Exchange("PUT", f"{number}", done.append, PATIENCE, whole=PATIENCE, upload=b"c", new=True)
            )
        for wire in wires * 1000:
            wire.turn()
            if len(done) == len(wires):
                break
            time.sleep(0.001)
        assert sorted(exchange.status for exchange in done) == [200, 412, 412, 412]


def test_what_does_not_come_is_given_up(
    weed: S3Endpoint, bucket: Buckets, proxy: Callable[[S3Endpoint], FaultProxy], aws_env: Callable[..., None]
) -> None:
    aws_env(weed)
    between = proxy(weed)
    wire = wire_to(between.url, bucket(weed))
    assert ask(wire, "PUT", "x", upload=b"x" * 100).status == 200
    for fault in (
        Fault("stall", after=10),
        Fault("dribble", seconds=0.1),
        Fault("close", after=10),
        Fault("reset"),
    ):
        between.add(fault)
        got = ask(wire, "GET", "x", patience=0.5, limit=100)
        assert got.status == 0 and got.why, fault
        between.clear()
    between.add(Fault("status", status=507, code="InsufficientStorage", times=1))
    assert ask(wire, "PUT", "x", upload=b"x").why == "the server answered 507 InsufficientStorage"
    assert ask(wire, "GET", "x", limit=100).body == b"x" * 100


def test_a_tier_without_credentials_says_so_and_serves_nothing(
    weed: S3Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    states: list[State] = []
    options = Options(shared_cache="s3://bucket", shared_cache_endpoint_url=weed.url)
    tier = open_tier(options, Metrics(), states.append)
    assert tier is not None
    assert tier.ask(part_of("id", bytes(16), ObjectRef(b"x", "v", 10)), "ticket")
    came: list[object] = []
    poll = select.poll()
    poll.register(tier, select.POLLIN)
    end = time.monotonic() + PATIENCE
    while not came and time.monotonic() < end:
        poll.poll(20)
        came += tier.turn()
    assert came == [("ticket", None)] and states[-1] is State.LEFT_ALONE
    assert "no AWS credentials found" in caplog.text
