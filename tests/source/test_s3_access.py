"""Credentials, regions and settings against real servers."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpufs.errors import AccessDenied, NotFound, RemoteFailed, VersionGone
from gpufs.source.s3 import credentials
from tests.servers import Fault, FaultProxy, S3Endpoint, fault_proxy

from .conftest import Make

Bucket = Callable[[S3Endpoint], str]
Proxy = Callable[[S3Endpoint], FaultProxy]
Env = Callable[[S3Endpoint], None]


@pytest.fixture
def profile(
    weed: S3Endpoint, aws_env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Writes the only credentials there are: profile `train` (SeaweedFS checks them, moto does not)."""
    aws_env(weed)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))

    def write(key: str, secret: str) -> None:
        path.write_text(f"[train]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")

    return write


@pytest.mark.parametrize("key", ["k", "tab\tkey"], ids=["obstore", "signed"])
def test_rotated_credentials_are_picked_up_without_a_remount(
    weed: S3Endpoint,
    bucket: Bucket,
    make: Make,
    profile: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str,
) -> None:
    """Case 17: bad, then good, in the same profile file, for reads and listings."""
    monkeypatch.setattr(credentials, "_RENEW_EVERY", 0.0)
    name = bucket(weed)
    version = weed.put(name, {key: b"data"})[key]
    profile("test", "wrong-secret")
    made = make(weed.url, name, profile="train")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(AccessDenied, match="renew"):
                made.read(key, version, 4)
            with pytest.raises(AccessDenied, match="renew"):
                made.source.check()
    assert "have no others yet" in caplog.text
    assert "wrong-secret" not in caplog.text
    profile("test", "testtest")
    assert made.read(key, version, 4) == b"data"
    made.source.check()


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
def test_refused_credentials_are_looked_up_anew(
    weed: S3Endpoint,
    bucket: Bucket,
    make: Make,
    proxy: Proxy,
    profile: Callable[[str, str], None],
    code: str,
) -> None:
    name = bucket(weed)
    version = weed.put(name, {"k": b"data"})["k"]
    between = proxy(weed)
    profile("test", "old")
    made = make(between.url, name, profile="train")
    between.add(Fault("status", "GET", status=403, code=code, times=1))
    with pytest.raises(AccessDenied):  # nothing new in the file
        made.read("k", version, 4)
    profile("test", "testtest")
    made = make(between.url, name, profile="train")
    assert made.read("k", version, 4) == b"data"


def test_requests_of_an_anonymous_source_are_not_signed(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy
) -> None:
    aws_env(weed)
    name = bucket(weed)
    version = weed.put(name, {"k": b"data", "tab\tkey": b"data"})["k"]
    between = proxy(weed)
    made = make(between.url, name, anonymous=True)
    calls: list[Callable[[], object]] = [
        made.source.check,
        lambda: made.read("k", version, 4),
        lambda: made.read("tab\tkey", version, 4),
    ]
    for call in calls:
        with pytest.raises(AccessDenied):
            call()
    assert len(between.seen()) == 3
    assert not any("authorization" in seen.headers for seen in between.seen())


def test_no_credentials_is_said_before_anything_is_sent(
    weed: S3Endpoint, aws_env: Env, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(weed)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    between = proxy(weed)
    with pytest.raises(AccessDenied, match="no AWS credentials found"):
        make(between.url, "any").source.check()
    assert between.seen() == []


@pytest.mark.parametrize("pays", [True, False])
def test_the_requester_pays_only_when_told(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy, pays: bool
) -> None:
    aws_env(moto)
    name = bucket(moto)
    version = moto.put(name, {"k": b"data", "a//b": b"data"})["k"]
    between = proxy(moto)
    made = make(between.url, name, requester_pays=pays)
    made.source.check()
    made.read("k", version, 4)
    made.read("a//b", version, 4)
    expected = "requester" if pays else None
    assert [seen.headers.get("x-amz-request-payer") for seen in between.seen()] == [expected] * 3


def test_the_region_is_found_out_without_credentials(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy
) -> None:
    aws_env(moto)
    between = proxy(moto)
    name = bucket(moto)
    between.add(
        Fault(
            "status", "HEAD", status=403, code="AccessDenied", headers={"x-amz-bucket-region": "eu-north-1"}
        )
    )
    made = make(between.url, name, region=None)
    made.source.check()
    head, listing = between.seen()
    assert "authorization" not in head.headers
    assert "/eu-north-1/s3/aws4_request" in listing.headers["authorization"]


def test_a_region_of_the_environment_gives_way_to_the_servers(
    moto: S3Endpoint,
    aws_env: Env,
    bucket: Bucket,
    make: Make,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws_env(moto)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    name = bucket(moto)
    version = moto.put(name, {"k": b"data"})["k"]
    between = proxy(moto)
    where = {"x-amz-bucket-region": "eu-north-1"}
    between.add(Fault("status", "GET", status=301, code="PermanentRedirect", headers=where, times=1))
    between.add(Fault("status", "HEAD", status=301, code="PermanentRedirect", headers=where, times=1))
    made = make(between.url, name, region=None)
    assert made.read("k", version, 4) == b"data"
    signed_for = [s.headers["authorization"].split("/")[2] for s in between.seen("GET")]
    assert signed_for == ["us-west-2", "eu-north-1"]


def test_a_wrong_region_of_the_option_is_said(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy
) -> None:
    aws_env(moto)
    between = proxy(moto)
    where = {"x-amz-bucket-region": "eu-north-1"}
    between.add(Fault("status", "LIST", status=301, code="PermanentRedirect", headers=where))
    with pytest.raises(RemoteFailed, match="mount with the option region=eu-north-1"):
        make(between.url, bucket(moto), region="us-west-2").source.check()


def test_something_that_is_no_s3_server_is_said(
    moto: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(moto)
    monkeypatch.setattr("gpufs.source.flat.source.CHECK_DEADLINE", 1.0)
    between = proxy(moto)
    between.add(Fault("status", status=200, code="NotAListing"))
    with pytest.raises(RemoteFailed, match="is this an S3 endpoint"):
        make(between.url, bucket(moto)).source.check()
    between.refuse()
    with pytest.raises(RemoteFailed, match=r"cannot connect to 127\.0\.0\.1"):
        make(between.url, "any").source.check()


def test_an_http_proxy_of_the_environment_is_used_by_both_clients(
    weed: S3Endpoint,
    aws_env: Env,
    bucket: Bucket,
    make: Make,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws_env(weed)
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    between = proxy(weed)
    monkeypatch.setenv("HTTP_PROXY", between.url)
    name = bucket(weed)
    version = weed.put(name, {"k": b"data", "tab\tkey": b"data"})["k"]
    made = make("http://s3.invalid", name)  # only a proxy can make anything of this name
    made.source.check()
    assert made.read("k", version, 4) == b"data"
    assert made.read("tab\tkey", version, 4) == b"data"
    ours = [seen for seen in between.seen() if seen.headers["host"] == "s3.invalid"]
    assert [seen.kind for seen in ours] == ["LIST", "GET", "GET"]
    assert all(seen.target.startswith(f"http://s3.invalid/{name}") for seen in ours)


def test_virtual_addressing_puts_the_bucket_into_the_host_for_both_clients(
    weed: S3Endpoint, aws_env: Env, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_env(weed)
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    between = proxy(weed)
    between.add(Fault("status", status=404, code="NoSuchKey"))
    monkeypatch.setenv("HTTP_PROXY", between.url)
    made = make("http://s3.invalid", "data", addressing="virtual")
    with pytest.raises(NotFound):
        made.source.check()
    for key in ("a b", "a//b"):
        with pytest.raises(VersionGone):
            made.read(key, "0" * 32, 4)
    assert [seen.target.partition("?")[0] for seen in between.seen()] == [
        "http://data.s3.invalid/",
        "http://data.s3.invalid/a%20b",
        "http://data.s3.invalid/a//b",
    ]


def test_credentials_of_the_environment_do_not_override_the_profile(
    weed: S3Endpoint,
    bucket: Bucket,
    make: Make,
    profile: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """obstore reads AWS_* by itself: neither keys, nor endpoint, nor anything else of it may win."""
    name = bucket(weed)
    version = weed.put(name, {"k": b"data"})["k"]
    profile("test", "testtest")
    for variable, value in {
        "AWS_ACCESS_KEY_ID": "wrong",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_SESSION_TOKEN": "wrong",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_REGION": "nowhere-1",
        "AWS_BUCKET": "wrong",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(variable, value)
    made = make(weed.url, name, profile="train")
    assert made.read("k", version, 4) == b"data"


def issue(
    path: Path, name: str, issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None
) -> ec.EllipticCurvePrivateKey:
    """Write key and certificate (a CA's own when there is no `issuer`) for 127.0.0.1 to a PEM file."""
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, by_key = issuer or (subject, key)
    made = (
        x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(by_key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + made.public_bytes(pem))
    return key


def test_a_private_ca_is_trusted_when_given_and_named_when_missing(
    weed: S3Endpoint, aws_env: Env, bucket: Bucket, make: Make, tmp_path: Path
) -> None:
    ca = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    issue(tmp_path / "server.pem", "server", (ca, issue(tmp_path / "ca.pem", "ca", None)))
    aws_env(weed)
    name = bucket(weed)
    version = weed.put(name, {"k": b"data", "tab\tkey": b"data"})["k"]
    with fault_proxy(weed.url, tmp_path / "server.pem") as between:
        made = make(between.url, name, ca_bundle=tmp_path / "ca.pem")
        made.source.check()
        assert made.read("k", version, 4) == b"data"
        assert made.read("tab\tkey", version, 4) == b"data"
        made = make(between.url, name, deadline=5.0)
        for call in (made.source.check, lambda: made.read("k", version, 4)):
            with pytest.raises(RemoteFailed, match="ca_bundle"):
                call()
        assert made.metrics.retries.value == 0
