"""From a source URL to a source: what is accepted, and what people are told about the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gpufs.errors import UsageError
from gpufs.metrics import Metrics
from gpufs.source import open_source
from gpufs.source.file import FileSource

NO_SETTINGS = cast(Any, None)  # a file source needs none, and an error comes before they are used


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """The (bucket, prefix) of every S3Source that was made, none of them being real."""
    calls: list[tuple[str, bytes]] = []
    monkeypatch.setattr(
        "gpufs.source.s3.S3Source", lambda bucket, prefix, *rest: calls.append((bucket, prefix))
    )
    yield calls


@pytest.mark.parametrize("url", ["{}", "file://{}", "file://localhost{}", "FILE://{}"])
def test_directories(tmp_path: Path, url: str) -> None:
    source = open_source(url.format(tmp_path), NO_SETTINGS, Metrics())
    assert isinstance(source, FileSource)
    assert source.id == f"file://{tmp_path}"


def test_percent_signs_and_colons_in_a_directory_stand_for_themselves(tmp_path: Path) -> None:
    for name in ("a%20b", "s3:x", "q?#"):
        (tmp_path / name).mkdir()
        source = open_source(f"file://{tmp_path}/{name}", NO_SETTINGS, Metrics())
        source.check()
        source.close()


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", b""),
        ("s3://bucket/", "bucket", b""),
        ("S3://My_Old.Bucket/p", "My_Old.Bucket", b"p"),
        ("s3://bucket/a%20b/c", "bucket", b"a%20b/c"),
        ("s3://bucket/a+b?x=1#y@z:1", "bucket", b"a+b?x=1#y@z:1"),
        ("s3://bucket/\u00fc/\udcff", "bucket", b"\xc3\xbc/\xff"),
    ],
)
def test_s3_urls_are_taken_byte_for_byte(
    made: list[tuple[str, bytes]], url: str, bucket: str, prefix: bytes
) -> None:
    open_source(url, NO_SETTINGS, Metrics())
    assert made == [(bucket, prefix)]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "no source given"),
        ("data", "full path"),
        ("./data:1", "full path"),
        ("s3://", "no bucket"),
        ("s3:///prefix", "no bucket"),
        ("s3:/bucket/x", "did you mean s3://bucket/x"),
        ("s3:bucket", "did you mean s3://bucket"),
        ("file:/data", "did you mean file:///data"),
        ("file://data/x", "did you mean file:///data/x"),
        ("s3a://bucket", "did you mean s3://"),
        ("fiel:///data", "did you mean file://"),
        ("gopher://host/x", r"supported are s3://bucket\[/prefix\], gs://bucket.*file:///dir or /dir"),
        ("gs://B", "no bucket name"),
        ("gs:bucket", "did you mean gs://bucket"),
        ("az://-x-/p", "no container"),
        ("https://", "write https://host/path/"),
        ("https://host/x?y=1", "write https://host/path/"),
        ("s3://b", "no bucket name"),
        ("s3://bu cket/x", "no bucket name"),
        ("s3://bucket..x", "no bucket name"),
        ("s3://-bucket", "no bucket name"),
        ("s3://localhost:9000/bucket", "endpoint_url"),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine", "alias"),
        ("/data\0", "zero byte"),
    ],
)
def test_wrong_urls_are_refused_with_help(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        open_source(url, NO_SETTINGS, Metrics())


@pytest.mark.parametrize("scheme", ["http", "https", "ftp", "sftp", "smb", "hdfs"])
def test_a_password_in_a_url_is_refused_and_not_repeated(scheme: str) -> None:
    """It would stand in the arguments of processes, in mountinfo and in the log."""
    with pytest.raises(UsageError, match=r"me:\*\*\*@host: a password does not belong") as caught:
        open_source(f"{scheme}://me:hunter2@host/share/x/", NO_SETTINGS, Metrics())
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://KEY:hunter2@bucket/x", "s3://KEY:hun/ter2@bucket", "s3://hunter2@bucket"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="credentials") as caught:
        open_source(url, NO_SETTINGS, Metrics())
    assert "ter2" not in str(caught.value)


def test_a_directory_source_loads_no_s3_code() -> None:
    code = (
        "import sys; from gpufs.metrics import Metrics; from gpufs.source import open_source\n"
        "open_source('/', None, Metrics())\n"
        "sys.exit(any(name in sys.modules for name in ('boto3', 'obstore', 'gpufs.source.s3')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
