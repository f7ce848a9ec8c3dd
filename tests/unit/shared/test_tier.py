"""The shared cache in a process: a reader gets right bytes, or the source is asked, whatever happens."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from gpufs.metrics import Metrics
from gpufs.shared.breaker import FAILURES
from gpufs.shared.entry import CLAIM, DROPPED, TOKEN, Found, Part, pack, part_of, unpack
from gpufs.shared.tier import (
    LEASE,
    LONGEST_POLL,
    LONGEST_WAIT,
    PATIENCE,
    QUEUE_BYTES,
    READS,
    RENEW,
    SLOW,
    WRITES,
    State,
    Tier,
)
from gpufs.shared.wire import Exchange
from gpufs.source.base import ObjectRef

SIZE = 1000


def part_number(number: int, size: int = SIZE) -> Part:
    return part_of("s3://bucket/", number.to_bytes(16, "big"), ObjectRef(b"%d" % number, "v", size))


def data_of(number: int, size: int = SIZE) -> memoryview:
    return memoryview(b"%04d" % number * (size // 4))


class Store:
    """What several hosts share: keys and bodies, with conditional writes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self.gets: list[str] = []
        self.puts: list[str] = []
        self.silent = False
        self.takes = 0.0
        self.refuses: dict[str, tuple[int, bytes]] = {}  # method -> status, body
        self.conditional = True

    def answer(self, exchange: Exchange) -> None:
        name = exchange.name
        (self.gets if exchange.method == "GET" else self.puts).append(name)
        if exchange.method in self.refuses:
            exchange.status, body = self.refuses[exchange.method]
            exchange.body += body
        elif exchange.method == "GET":
            exchange.status = 200 if name in self.objects else 404
            exchange.body += self.objects.get(name, b"")[: exchange.limit + 1]
            exchange.date = b"Tue, 01 Dec 2026 10:00:%02d GMT" % (self.now % 60)
            exchange.written = b"Tue, 01 Dec 2026 10:00:%02d GMT" % (self.written.get(name, self.now) % 60)
        elif exchange.new and not self.conditional:
            exchange.status = 501
        elif exchange.new and name in self.objects:
            exchange.status = 412
        else:
            exchange.status = 200
            self.objects[name] = exchange.upload
            self.written[name] = self.now


class Line:
    """The way of one host to the store: an answer comes when the test turns."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.connected = True
        self.trouble = ""
        self.sent: list[Exchange] = []
        self.most = {"GET": 0, "PUT": 0}

    def fileno(self) -> int:
        raise AssertionError("nobody waits in these tests")

    def timeout(self) -> float | None:
        return None

    def ready(self) -> bool:
        return self.connected

    def send(self, exchange: Exchange) -> None:
        exchange.began = exchange.heard = self.store.now
        self.sent.append(exchange)
        for method in self.most:
            count = sum(each.method == method and not each.new for each in self.sent)
            self.most[method] = max(self.most[method], count)

    def turn(self) -> None:
        sent, self.sent = self.sent, []
        for exchange in sent:
            if self.store.silent:
                if exchange.late(self.store.now):
                    exchange.error = "no answer in time"
                    exchange.done(exchange)
                else:
                    self.sent.append(exchange)
            elif self.store.now - exchange.began < self.store.takes:
                self.sent.append(exchange)
            else:
                self.store.answer(exchange)
                exchange.done(exchange)


class Host:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.line = Line(store)
        self.metrics = Metrics()
        self.states: list[State] = []
        self.tier = Tier(self.line, "s3://tier", self.metrics, self.states.append, lambda: store.now)
        self.came: dict[Any, memoryview | None] = {}

    def ask(self, number: int, **options: Any) -> bool:
        return self.tier.ask(part_number(number), number, **options)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.came.update(self.tier.turn())

    def get(self, number: int) -> memoryview | None:
        """Ask, and wait as long as it takes."""
        if not self.ask(number):
            return None
        end = self.store.now + 100
        while number not in self.came:
            self.turn()
            self.store.now += 0.01
            assert self.store.now < end
        return self.came.pop(number)

    def keep(self, number: int, size: int = SIZE) -> None:
        self.tier.keep(part_number(number, size), data_of(number, size))

    def pass_time(self, seconds: float) -> None:
        end = self.store.now + seconds
        while self.store.now < end:
            self.store.now += 0.05
            self.turn()

    def counted(self, name: str) -> int:
        return self.metrics.snapshot()[f"shared_{name}"]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store)


def test_what_one_host_has_fetched_another_finds(store: Store, host: Host) -> None:
    assert host.get(1) is None
    host.keep(1)
    host.turn(3)
    other = Host(store)
    assert other.get(1) == data_of(1)
    assert (other.counted("hits"), host.counted("misses"), host.counted("writes")) == (1, 1, 1)


def test_a_damaged_or_foreign_entry_is_a_miss_and_is_replaced(store: Store, host: Host) -> None:
    good = pack(part_number(1), data_of(1))
    bad = [
        good[:-1] + b"?",
        good[:-1],
        good + b"?",
        b"",
        pack(part_number(2), data_of(2)),
        b"<html>" * 100,
    ]
    for number, body in enumerate(bad, 1):
        store.objects[part_number(1).name] = body
        assert host.get(1) is None
        assert host.counted("corrupt") == number
        host.keep(1)
        host.turn(3)
        assert store.objects[part_number(1).name] == good
        assert host.get(1) == data_of(1)


def test_what_two_hosts_want_at_the_same_time_one_fetches(store: Store, host: Host) -> None:
    other = Host(store)
    assert host.ask(1) and other.ask(1)
    for each in (host, other) * 5:
        each.turn()
    assert host.came == {1: None} and not other.came
    host.keep(1)
    host.turn(3)
    other.pass_time(2 * LONGEST_POLL)
    assert other.came == {1: data_of(1)}


def test_a_claim_is_renewed_while_the_source_takes_its_time(store: Store, host: Host) -> None:
    other = Host(store)
    assert host.get(1) is None
    other.ask(1)
    for _ in range(int(2 * LEASE)):
        host.pass_time(0.5)
        other.pass_time(0.5)
    assert not other.came
    host.keep(1)
    host.pass_time(0.5)
    other.pass_time(0.5)
    assert other.came == {1: data_of(1)}


def test_a_renewal_never_overwrites_the_entry(store: Store, host: Host) -> None:
    assert host.get(1) is None
    store.takes = 0.5
    host.pass_time(RENEW + 0.2)
    assert [each.method for each in host.line.sent] == ["PUT"]
    host.keep(1)
    assert len(host.line.sent) == 1, "the entry waits until the renewal has ended"
    host.pass_time(3)
    assert unpack(part_number(1), memoryview(store.objects[part_number(1).name])) == data_of(1)
    host.pass_time(3 * RENEW)
    assert store.puts == [part_number(1).name] * 3


def test_who_has_claimed_something_and_died_is_not_waited_for_long(store: Store, host: Host) -> None:
    store.objects[part_number(1).name] = CLAIM + os.urandom(TOKEN)
    store.written[part_number(1).name] = store.now
    began = store.now
    assert host.get(1) is None
    assert LEASE <= store.now - began < LEASE + 2 * LONGEST_POLL
    host.keep(1)
    host.turn(3)
    assert host.get(1) == data_of(1)


def test_an_old_claim_is_not_waited_for(store: Store, host: Host) -> None:
    store.objects[part_number(1).name] = CLAIM + os.urandom(TOKEN)
    store.written[part_number(1).name] = store.now - LEASE - 5
    began = store.now
    assert host.get(1) is None
    assert store.now - began < 0.1


def test_who_gives_up_lets_the_others_go(store: Store, host: Host) -> None:
    other = Host(store)
    assert host.get(1) is None
    other.ask(1)
    other.pass_time(0.2)
    host.tier.give_up(part_number(1))
    host.turn(2)
    other.pass_time(2 * LONGEST_POLL)
    assert other.came == {1: None}
    assert unpack(part_number(1), memoryview(store.objects[part_number(1).name])) is Found.DROPPED
    assert store.objects[part_number(1).name] == DROPPED


def test_claims_that_come_to_nothing_are_not_waited_for_any_more(store: Store, host: Host) -> None:
    for number in range(FAILURES + 1):
        store.objects[part_number(number).name] = CLAIM + os.urandom(TOKEN)
        store.written[part_number(number).name] = store.now
    for number in range(FAILURES):
        host.ask(number)
    host.pass_time(LEASE + 1)
    assert len(host.came) == FAILURES
    store.written[part_number(FAILURES).name] = began = store.now - 0.01
    assert host.get(FAILURES) is None
    assert store.now - began < 0.2


def test_nobody_waits_for_ever_for_a_claim_that_is_renewed(store: Store, host: Host) -> None:
    host.ask(1)
    store.objects[part_number(1).name] = CLAIM + os.urandom(TOKEN)
    began = store.now
    while 1 not in host.came:
        store.objects[part_number(1).name] = CLAIM + os.urandom(TOKEN)
        store.written[part_number(1).name] = store.now
        host.pass_time(0.2)
    assert store.now - began < LONGEST_WAIT + 1


def test_a_store_without_conditional_writes_serves_without_claims(store: Store, host: Host) -> None:
    store.conditional = False
    for number in range(3):
        assert host.get(number) is None
        host.keep(number)
        host.turn(3)
    assert len(store.puts) == 1 + 3, "one claim was tried"
    assert host.get(1) == data_of(1)


def test_a_store_that_hangs_costs_one_wait(
    store: Store, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store.silent = True
    began = store.now
    for number in range(FAILURES):
        host.ask(number)
    while len(host.came) < FAILURES:
        host.pass_time(0.05)
    assert store.now - began < PATIENCE + 0.2
    assert not any(host.came.values()) and host.states[-1] is State.LEFT_ALONE
    for number in range(100):  # nobody waits from now on, whatever becomes of the probes
        assert not host.ask(number)
        host.pass_time(0.5)
    assert len(store.gets) == 0 and len(host.line.sent) <= 1
    store.silent = False
    host.pass_time(61)
    host.ask(0)
    host.pass_time(1)
    assert host.states[-1] is State.FINE and host.ask(1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "left alone" in said[0] and "answers again" in said[1]


def test_a_store_that_is_much_slower_than_the_source_is_left_alone(store: Store, host: Host) -> None:
    store.takes = 3 * SLOW
    for number in range(30):
        host.get(number)
        host.tier.give_up(part_number(number))
    assert host.states[-1] is State.LEFT_ALONE
    host.pass_time(2)
    assert not host.ask(99), "a probe that is slow too"
    host.pass_time(2)
    assert host.states[-1] is State.LEFT_ALONE


@pytest.mark.parametrize("status, code", [(403, b"AccessDenied"), (404, b"NoSuchBucket"), (301, b"")])
def test_a_store_that_refuses_is_left_alone(store: Store, host: Host, status: int, code: bytes) -> None:
    store.refuses["GET"] = status, b"<Error><Code>" + code + b"</Code></Error>"
    for number in range(FAILURES):
        assert host.get(number) is None
    assert host.states[-1] is State.LEFT_ALONE


@pytest.mark.parametrize("status", [403, 507, 500])
def test_a_store_that_is_full_is_only_read(
    store: Store, host: Host, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    store.objects[part_number(0).name] = pack(part_number(0), data_of(0))
    store.refuses["PUT"] = status, b"<Code>QuotaExceeded</Code>"
    for number in range(1, 50):
        assert host.get(number) is None
        host.keep(number)
        host.turn(3)
    assert host.states[-1] is State.READ_ONLY
    assert len(store.puts) <= FAILURES + 1
    assert host.get(0) == data_of(0)
    assert [r.levelname for r in caplog.records if "takes nothing" in r.getMessage()] == ["WARNING"]
    del store.refuses["PUT"]
    host.pass_time(2)
    assert host.get(50) is None
    host.keep(50)
    host.turn(3)
    assert host.states[-1] is State.FINE and host.get(50) == data_of(50)


def test_what_waits_to_be_written_is_bounded(store: Store, host: Host) -> None:
    size = QUEUE_BYTES // 8
    store.silent = True
    for number in range(20):
        host.keep(number, size)
    assert host.counted("dropped") == 20 - 8
    assert host.line.most["PUT"] == WRITES
    store.silent = False
    host.turn(10)
    assert host.counted("writes") == 8


def test_nothing_is_claimed_that_may_not_be_written(store: Store, host: Host) -> None:
    """Others would wait for it."""
    host.get(99)  # by now it is connected
    store.silent = True
    for number in range(5):
        host.keep(number, QUEUE_BYTES // 8)
    store.silent = False
    puts = len(store.puts)
    host.line.sent, sent = [], host.line.sent
    assert host.get(1) is None
    assert len(store.puts) == puts
    host.line.sent = sent


def test_readers_come_first_and_only_so_many_at_once(store: Store, host: Host) -> None:
    for number in range(100):
        store.objects[part_number(number).name] = pack(part_number(number), data_of(number))
    for number in range(50):
        host.ask(number, urgent=False)
    for number in range(50, 60):
        host.ask(number)
    assert len(host.line.sent) == READS
    host.turn(2)
    names = [part_number(number).name for number in range(50, 60)]
    assert store.gets[READS : READS + len(names)] == names
    host.turn(20)
    assert len(host.came) == 60 and host.line.most["GET"] == READS


def test_the_first_connection_is_waited_for_and_not_long(store: Store, host: Host) -> None:
    host.line.connected = False
    store.objects[part_number(1).name] = pack(part_number(1), data_of(1))
    host.ask(1)
    host.pass_time(PATIENCE / 2)
    assert not host.came
    host.line.connected = True
    host.pass_time(0.2)
    assert host.came == {1: data_of(1)}
    late = Host(store)
    late.line.connected = False
    late.ask(1)
    late.pass_time(PATIENCE + 0.2)
    assert late.came == {1: None} and not late.ask(2)
    late.line.connected = True
    late.pass_time(1)
    late.ask(3)
    late.pass_time(0.2)
    late.came.clear()
    assert late.get(1) == data_of(1)


def test_a_trouble_with_the_first_connection_is_told(
    store: Store, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.line.connected, host.line.trouble = False, "no credentials"
    assert host.get(1) is None
    assert "no credentials" in caplog.text


def test_an_empty_object_is_no_question(store: Store, host: Host) -> None:
    empty = part_number(1, 0)
    assert not host.tier.ask(empty, 1)
    host.tier.keep(empty, memoryview(b""))
    assert not store.gets and not host.line.sent
