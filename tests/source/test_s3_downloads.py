"""Downloads by libcurl: the same bytes and the same promises as read(), or else None and read() explains."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gpufs.errors import AccessDenied, GpufsError, VersionGone
from gpufs.source.base import ObjectRef
from gpufs.source.s3 import downloads as module
from gpufs.source.s3 import objects, signed
from gpufs.source.s3.downloads import S3Downloads
from tests.servers import Fault, FaultProxy, S3Endpoint

from .conftest import Made, Make

Bucket = Callable[[S3Endpoint], str]
Proxy = Callable[[S3Endpoint], FaultProxy]
Env = Callable[[S3Endpoint], None]

PATIENCE = 20.0
BODY = bytes(range(256)) * 200

KEYS = [
    "a b",
    " lead and trail ",
    "a+b",
    "a=b",
    "100%",
    "pct%2Fenc",
    "%zz",
    "tilde~*",
    "\U0001f600",
    "\u00e9",
    "e\u0301",
    'it\'s "quoted"',
    "(paren)[b]{c}",
    "a&b<c>",
    ":@,;=$!",
    "q?x=1",
    "#1",
    "^|`",
    "..x",
    "x..",
    ".hidden",
    "-_.~",
    "d i+r/sub%20dir/=&?/file",
    "a/" + "長い名前" * 20,
]


class Driver:
    """Drives downloads as their process does; `got` has what has come, by path."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.downloads: S3Downloads = made.source.downloads()
        self.got: dict[bytes, memoryview | GpufsError | None] = {}
        self._poll = select.poll()
        self._poll.register(self.downloads, select.POLLIN)

    def connected(self) -> Driver:
        """As after the first read(), and with credentials at hand."""
        self.made.source.prepare()
        end = time.monotonic() + PATIENCE
        while not self.downloads._signpost.ready():
            assert time.monotonic() < end
            for thread in threading.enumerate():
                if thread.name == "gpufs credentials":
                    thread.join()
        return self

    def start(self, key: str, version: str, size: int) -> bool:
        ref = ObjectRef(key.encode(), version, size)
        return self.downloads.start(ref, ref)

    def until(self, count: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.got) < count:
            left = end - time.monotonic()
            assert left > 0, f"{len(self.got)} of {count} have come"
            timeout = self.downloads.timeout()
            self._poll.poll(1000 * (left if timeout is None else min(left, timeout)))
            self.got |= {ref.path: data for ref, data in self.downloads.turn()}

    def one(self, key: str, version: str, size: int) -> memoryview | GpufsError | None:
        assert self.start(key, version, size), "it was refused"
        self.got.clear()
        self.until(1)
        return self.got[key.encode()]


@dataclass
class Lab:
    """One object on moto behind a proxy that breaks things, and its downloads."""

    proxy: FaultProxy
    made: Made
    version: str
    driver: Driver

    def get(self, size: int = len(BODY)) -> memoryview | GpufsError | None:
        return self.driver.one("k", self.version, size)


@pytest.fixture
def lab(
    moto: S3Endpoint,
    aws_env: Env,
    bucket: Bucket,
    proxy: Proxy,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> Lab:
    aws_env(moto)
    for each in (objects, signed, module):  # so that a stall is noticed within the patience of a test
        monkeypatch.setattr(each, "READ_TIMEOUT", 1.0)
    monkeypatch.setattr(module, "WHOLE_TIMEOUT", 3.0)
    name = bucket(moto)
    version = moto.put(name, {"k": BODY})["k"]
    between = proxy(moto)
    made = make(between.url, name)
    driver = Driver(made).connected()
    between.forget()
    return Lab(between, made, version, driver)


def test_odd_keys_come_with_their_bytes(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    """SeaweedFS checks every signature: each of these keys is spelled as S3 wants it."""
    name = bucket(server)
    versions = server.put(name, {key: b"body of " + key.encode() for key in KEYS})
    driver = Driver(make(server.url, name)).connected()
    for key in KEYS:
        assert driver.start(key, versions[key], len(b"body of " + key.encode())), f"{key!r} was refused"
    driver.until(len(KEYS))
    assert driver.got == {key.encode(): b"body of " + key.encode() for key in KEYS}
    assert driver.made.metrics.remote_requests.value == len(KEYS)
    assert driver.made.metrics.remote_errors.value == driver.made.metrics.retries.value == 0


def test_odd_prefixes_and_bases(server: S3Endpoint, bucket: Bucket, make: Make) -> None:
    name = bucket(server)
    body = b"body"
    versions = server.put(name, {"a b/%41+é/k=1": body})
    driver = Driver(make(server.url, name, "a b/%41+é".encode())).connected()
    assert driver.one("k=1", versions["a b/%41+é/k=1"], len(body)) == body


def test_keys_that_cannot_be_spelled_go_the_long_way(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make
) -> None:
    aws_env(moto)
    name = bucket(moto)
    keys = ["tab\tkey", "del\x7f", "a//b"]
    versions = moto.put(name, dict.fromkeys(keys, b"data"))
    driver = Driver(make(moto.url, name)).connected()
    for key in keys:
        assert not driver.start(key, versions[key], 4)
        assert driver.made.read(key, versions[key], 4) == b"data"
    assert not driver.downloads.start(ObjectRef(b"\xff", "0" * 32, 4), None)


def test_nothing_is_sent_before_somebody_has_connected(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy
) -> None:
    aws_env(weed)
    between = proxy(weed)
    name = bucket(weed)
    version = weed.put(name, {"k": b"data"})["k"]
    driver = Driver(make(between.url, name))
    assert not driver.start("k", version, 4)
    assert driver.downloads.timeout() is None or driver.downloads.turn() == []
    assert between.seen() == []
    assert driver.connected().one("k", version, 4) == b"data"


# -- signatures


def expected_authorization(method: str, url: str, headers: dict[str, str], secret: Credentials) -> str:
    """What botocore would send for the same request at the same time."""
    (names,) = re.findall("SignedHeaders=([^,]+)", headers["authorization"])
    taken = {name: headers[name] for name in names.split(";")}
    request = AWSRequest(method, url, headers=taken)
    signer = S3SigV4Auth(secret, "s3", "us-east-1")
    request.context["timestamp"] = headers["x-amz-date"]
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    scope = f"{secret.access_key}/{headers['x-amz-date'][:8]}/us-east-1/s3/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"


@pytest.mark.parametrize("pays", [False, True], ids=["", "pays"])
@pytest.mark.parametrize("token", [None, "to/ken+==" * 40], ids=["keys", "temporary"])
def test_signatures_are_those_of_botocore(
    moto: S3Endpoint,
    aws_env: Env,
    bucket: Bucket,
    make: Make,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    pays: bool,
) -> None:
    """Also with a session token, and with the header of who pays: both are sent and signed."""
    aws_env(moto)
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    name = bucket(moto)
    between = proxy(moto)
    versions = moto.put(name, dict.fromkeys(KEYS, b"data"))
    driver = Driver(make(between.url, name, requester_pays=pays)).connected()
    between.forget()
    for key in KEYS:
        assert driver.one(key, versions[key], 4) == b"data"
    secret = Credentials(moto.access_key, moto.secret_key, token)
    assert len(between.seen()) == len(KEYS)
    for seen in between.seen():
        assert seen.headers.get("x-amz-security-token") == token
        assert seen.headers.get("x-amz-request-payer") == ("requester" if pays else None)
        given = seen.headers["authorization"]
        signed_names = set(re.findall("SignedHeaders=([^,]+)", given)[0].split(";"))
        needed = {name for name in seen.headers if name.startswith("x-amz-")} | {"host"}
        assert needed <= signed_names
        assert given == expected_authorization("GET", between.url + seen.target, seen.headers, secret)


def test_an_anonymous_source_does_not_sign(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy
) -> None:
    aws_env(moto)
    name = bucket(moto)
    between = proxy(moto)
    version = moto.put(name, {"k": b"data"}, ACL="public-read")["k"]
    driver = Driver(make(between.url, name, anonymous=True)).connected()
    assert driver.one("k", version, 4) == b"data"
    (seen,) = between.seen("GET")
    assert not [name for name in seen.headers if name in ("authorization", "x-amz-date")]


def test_credentials_that_were_refused_are_used_no_more_once_there_are_others(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(weed)
    name = bucket(weed)
    version = weed.put(name, {"k": b"data"})["k"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    monkeypatch.setattr("gpufs.source.s3.credentials._RENEW_EVERY", 0.0)
    driver = Driver(make(weed.url, name)).connected()
    assert driver.one("k", version, 4) is None
    with pytest.raises(AccessDenied):
        driver.made.read("k", version, 4)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", weed.secret_key)
    assert driver.made.read("k", version, 4) == b"data"
    assert driver.connected().one("k", version, 4) == b"data"


# -- what is not simply right


def test_a_replaced_version_is_told_as_read_tells_it(lab: Lab, moto: S3Endpoint) -> None:
    bucket = lab.made.source.id.split("/")[2]
    assert lab.get() == BODY
    moto.put(bucket, {"k": BODY[::-1]})
    replaced = lab.get()
    assert "if-match" in lab.proxy.seen("GET")[-1].headers
    with pytest.raises(VersionGone) as told:
        lab.made.read("k", lab.version, len(BODY))
    assert isinstance(replaced, VersionGone) and str(replaced) == str(told.value)
    moto.client().delete_object(Bucket=bucket, Key="k")
    deleted = lab.get()
    with pytest.raises(VersionGone) as told:
        lab.made.read("k", lab.version, len(BODY))
    assert isinstance(deleted, VersionGone) and str(deleted) == str(told.value)


BREAKS = [
    Fault("status", status=503),
    Fault("status", status=403, code="AccessDenied"),
    Fault("status", status=301, code="PermanentRedirect", headers={"Location": "http://127.0.0.1:1/"}),
    Fault("status", status=206, code="Strange"),
    Fault("reset"),
    Fault("close", after=1000),
    Fault("close", after=0),
    Fault("stall", after=1000),
    Fault("stall", after=0),
]


@pytest.mark.parametrize(
    "fault", BREAKS, ids=lambda f: f"{f.action}-{f.status if f.action == 'status' else f.after}"
)
def test_whatever_fails_gives_none_and_the_next_is_right(lab: Lab, fault: Fault) -> None:
    lab.proxy.add(
        Fault(
            fault.action,
            "GET",
            after=fault.after,
            status=fault.status,
            code=fault.code,
            headers=fault.headers,
            times=1,
        )
    )
    before = lab.made.metrics.snapshot()
    assert lab.get() is None
    assert lab.get() == BODY
    after = lab.made.metrics.snapshot()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown == {"remote_requests": 2, "remote_errors": 1, "remote_bytes": len(BODY)}


def test_silence_in_the_middle_is_noticed_in_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a good start, and long before the limit of the whole."""
    monkeypatch.setattr(module, "WHOLE_TIMEOUT", 30.0)
    lab.proxy.add(Fault("stall", "GET", after=len(BODY) - 1, times=1))
    began = time.monotonic()
    assert lab.get() is None
    assert 1.0 < time.monotonic() - began < 5.0
    assert lab.get() == BODY


def test_a_repeat_is_counted_once(lab: Lab) -> None:
    lab.proxy.add(Fault("status", "GET", status=503, times=1))
    assert lab.get() is None
    ref = ObjectRef(b"k", lab.version, len(BODY))
    assert lab.made.source.read(ref, 0, len(BODY), spent=0.1) == BODY
    counted = lab.made.metrics
    assert (counted.remote_requests.value, counted.retries.value) == (2, 1)
    assert (counted.remote_errors.value, counted.remote_bytes.value) == (1, len(BODY))


def test_a_server_that_sends_drop_by_drop_does_not_outlast_the_time_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes now and then are no progress: readers are told within their deadline."""
    monkeypatch.setattr(module, "WHOLE_TIMEOUT", 1.5)
    lab.proxy.add(Fault("dribble", "GET", seconds=0.05, times=1))
    began = time.monotonic()
    assert lab.get() is None
    assert time.monotonic() - began < 5
    assert lab.get() == BODY


def test_a_server_that_cannot_be_reached_gives_none(lab: Lab) -> None:
    lab.proxy.refuse()
    assert lab.get() is None
    lab.proxy.listen()
    assert lab.get() == BODY


@dataclass
class Canned:
    """Answers every GET with `answer`; `asked` has the heads of the requests."""

    url: str = ""
    answer: bytes = b""
    asked: list[bytes] = field(default_factory=list)


@contextmanager
def canned_server() -> Iterator[Canned]:
    canned = Canned()
    listener = socket.create_server(("127.0.0.1", 0))
    canned.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                    head += piece
                canned.asked.append(head)
                connection.sendall(canned.answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield canned
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


ETAG = "0123456789abcdef0123456789abcdef"
ANSWERS = {
    "good": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 4\r\n\r\nbody', True),
    "until the connection closes": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\n\r\nbody', True),
    "in chunks": (
        b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n',
        True,
    ),
    "after a 100": (
        b"HTTP/1.1 100 Continue\r\nETag: x\r\n\r\n"
        b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 4\r\n\r\nbody',
        True,
    ),
    "another ETag": (b'HTTP/1.1 200 OK\r\nETag: "x%s"\r\nContent-Length: 4\r\n\r\nbody', False),
    "no ETag": (b'HTTP/1.1 200 OK\r\nX: "%s"\r\nContent-Length: 4\r\n\r\nbody', False),
    "a short body": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 3\r\n\r\nbod', False),
    "a long body": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 5\r\n\r\nbody!', False),
    "a long body to the close": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\n\r\nbody!', False),
    "a cut body": (b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 9\r\n\r\nbody', False),
    "a part": (b'HTTP/1.1 206 Part\r\nETag: "%s"\r\nContent-Length: 4\r\n\r\nbody', False),
    "no HTTP": (b"SSH-2.0-x\r\n%s", False),
    "nothing": (b"", False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_only_the_whole_right_version_is_taken(moto: S3Endpoint, aws_env: Env, make: Make, name: str) -> None:
    aws_env(moto)
    answer, good = ANSWERS[name]
    with canned_server() as server:
        server.answer = answer.replace(b"%s", ETAG.encode())
        driver = Driver(make(server.url, "bucket")).connected()
        assert driver.one("k", ETAG, 4) == (b"body" if good else None)
        assert server.asked[-1].count(b'If-Match: "' + ETAG.encode() + b'"\r\n') == 1


def test_flipped_bytes_are_not_intact(lab: Lab) -> None:
    ref = ObjectRef(b"k", lab.version, len(BODY))
    good = lab.get()
    assert good is not None and lab.driver.downloads.intact(ref, good)
    lab.proxy.add(Fault("flip", "GET", after=1000, times=1))
    bad = lab.get()
    assert bad is not None and not lab.driver.downloads.intact(ref, bad)


def test_many_at_once_share_connections(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(weed)
    name = bucket(weed)
    count, at_once = 1000, 32
    bodies = {f"d/{n:04}": b"%04d" % n * (1 + n % 500) for n in range(count)}
    versions = weed.put(name, bodies)
    between = proxy(weed)
    connections: list[socket.socket] = []
    hold = between.hold
    monkeypatch.setattr(between, "hold", lambda s: (connections.append(s), hold(s)))
    driver = Driver(make(between.url, name)).connected()
    for number, key in enumerate(bodies):
        assert driver.start(key, versions[key], len(bodies[key]))
        driver.until(number + 1 - at_once)
    driver.until(count)
    assert driver.got == {key.encode(): body for key, body in bodies.items()}
    assert between.counts()["GET"] == count
    assert len(connections) <= at_once + 2
    counted = driver.made.metrics
    assert counted.remote_bytes.value == sum(map(len, bodies.values()))
    assert counted.remote_requests.value == count


def test_an_http_proxy_of_the_environment_is_used(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(weed)
    for variable in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(variable, raising=False)
    between = proxy(weed)
    monkeypatch.setenv("HTTP_PROXY", between.url)
    name = bucket(weed)
    version = weed.put(name, {"a b": b"data"})["a b"]
    driver = Driver(make("http://s3.invalid", name)).connected()
    assert driver.one("a b", version, 4) == b"data"
    assert between.seen("GET")[-1].target == f"http://s3.invalid/{name}/a%20b"
