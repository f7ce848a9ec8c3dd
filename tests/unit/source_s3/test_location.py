"""Where requests go: endpoint, region, addressing and the identity of the source, all without network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufs.errors import UsageError
from gpufs.metrics import Metrics
from gpufs.source.retry import Retry
from gpufs.source.s3 import S3Settings, S3Source
from gpufs.source.s3.location import Location, configured_region, locate, open_session


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def at(bucket: str = "data", region: str | None = None, **settings: Any) -> Location:
    made = S3Settings(**settings)
    return locate(bucket, made, open_session(made), region)


def source(prefix: bytes = b"", **settings: Any) -> S3Source:
    metrics = Metrics()
    return S3Source("data", prefix, S3Settings(**settings), Retry(metrics), metrics)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        (lambda: at(), "https://data.s3.us-east-1.amazonaws.com/a%20b"),
        (lambda: at(region="eu-west-1"), "https://data.s3.eu-west-1.amazonaws.com/a%20b"),
        (lambda: at(region="cn-north-1"), "https://data.s3.cn-north-1.amazonaws.com.cn/a%20b"),
        (lambda: at("my.data"), "https://s3.us-east-1.amazonaws.com/my.data/a%20b"),
        (lambda: at(addressing="path"), "https://s3.us-east-1.amazonaws.com/data/a%20b"),
        (lambda: at(endpoint_url="http://h:9/"), "http://h:9/data/a%20b"),
        (lambda: at(endpoint_url="http://h:9", addressing="virtual"), "http://data.h:9/a%20b"),
        (lambda: at(endpoint_url="https://h/s3"), "https://h/s3/data/a%20b"),
    ],
)
def test_addressing(location: Any, url: str) -> None:
    assert location().url(b"a b") == url


def test_a_listing_has_the_bucket_only_once() -> None:
    assert at().url(b"", "q=1") == "https://data.s3.us-east-1.amazonaws.com/?q=1"
    assert at(addressing="path").url(b"", "q=1") == "https://s3.us-east-1.amazonaws.com/data?q=1"


def test_keys_with_leading_slash_keep_it() -> None:
    assert at().url(b"/lead") == "https://data.s3.us-east-1.amazonaws.com//lead"


def test_endpoint_order_option_environment_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[default]\nendpoint_url = http://general:1\n"
        "[profile p]\nservices = s\n[services s]\ns3 =\n  endpoint_url = http://profile:1\n"
    )
    assert at().endpoint == "http://general:1"
    assert at(profile="p").endpoint == "http://profile:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://env:1")
    assert at(profile="p").endpoint == "http://env:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://envs3:1")
    assert at().endpoint == "http://envs3:1"
    assert at(endpoint_url="http://option:1").endpoint == "http://option:1"


def test_region_order_option_environment_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def region(**settings: Any) -> str | None:
        made = S3Settings(**settings)
        return configured_region(made, open_session(made))

    assert region() is None
    (tmp_path / "config").write_text("[default]\nregion = profile-1\n")
    assert region() == "profile-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "default-1")
    assert region() == "default-1"
    monkeypatch.setenv("AWS_REGION", "env-1")
    assert region() == "env-1"
    assert region(region="option-1") == "option-1"


def test_proxies_and_their_exceptions_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert at().proxy == "http://proxy:3128"
    assert at(endpoint_url="http://h:9").proxy is None
    monkeypatch.setenv("NO_PROXY", ".amazonaws.com")
    assert at().proxy is None


def test_ca_bundle_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at().ca_bundle is None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/r")
    assert at().ca_bundle == "/r"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/a")
    assert at().ca_bundle == "/a"
    assert at(ca_bundle=Path("/o")).ca_bundle == "/o"


def test_a_profile_that_does_not_exist_is_an_error_of_usage() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        open_session(S3Settings(profile="nosuch"))


@pytest.mark.parametrize("url", ["localhost:8333", "ftp://h", "http://", "http://user:pw@h"])
def test_an_endpoint_that_cannot_be_right_is_an_error_of_usage(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        at(endpoint_url=url)
    assert "pw" not in str(caught.value)


def test_the_id_tells_datasets_apart() -> None:
    ids = {
        source().id,
        source(b"p").id,
        source(b"p/q").id,
        source(endpoint_url="http://h").id,
        source(b"\xff").id,
    }
    assert len(ids) == 5
    assert source(b"p").id == source(b"p/").id == "s3://data/p/"
    assert source(endpoint_url="http://h/").id == source(endpoint_url="http://h").id


def test_making_a_source_imports_no_client() -> None:
    """A mount whose index is known must answer within a second of its start."""
    code = (
        "import sys; from gpufs.source.s3 import *; from gpufs.source.retry import Retry\n"
        "from gpufs.metrics import Metrics; m = Metrics()\n"
        "s = S3Source('b', b'p', S3Settings(), Retry(m), m); s.id; s.abilities\n"
        "print([x for x in sys.modules if x.split('.')[0] in ('boto3', 'botocore', 'obstore', 'urllib3')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
