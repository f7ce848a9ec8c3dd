"""Remote data sets: the protocol, its values, and the way from a URL to a source."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpufs.errors import UsageError
from gpufs.metrics import Metrics
from gpufs.options import MountConfig
from gpufs.source.base import Abilities, Batch, Entry, Hidden, Kind, ObjectRef, OnTheWeb, Origin, Page, Source
from gpufs.source.file import FileSource
from gpufs.source.retry import Load, Retry

if TYPE_CHECKING:
    from gpufs.source.nfs.settings import NfsSettings
    from gpufs.source.s3.settings import S3Settings

__all__ = [
    "Abilities",
    "Batch",
    "Entry",
    "Hidden",
    "Kind",
    "ObjectRef",
    "OnTheWeb",
    "Origin",
    "Page",
    "Source",
    "local_directory",
    "open_configured",
    "open_source",
]

_SUPPORTED = {
    "s3": "s3://bucket[/prefix]",
    "gs": "gs://bucket[/prefix]",
    "az": "az://container[/prefix]",
    "abfs": "abfs://container@account.dfs.core.windows.net[/prefix]",
    "abfss": "abfss://container@account.dfs.core.windows.net[/prefix]",
    "http": "http://host/path/",
    "https": "https://host/path/",
    "nfs": "nfs://host[:port]/export[/path]",
    "file": "file:///dir or /dir",
}

# What AWS has ever allowed (old buckets have capitals and underscores) and other stores allow.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


def open_source(
    url: str,
    settings: S3Settings,
    metrics: Metrics,
    load: Load | None = None,
    *,
    nfs: NfsSettings | None = None,
) -> Source:
    """The source that `url` names. Nothing is asked of the data set yet; see Source.check.

    What follows the scheme is taken byte for byte: a percent sign, `?` or `#` stands for itself.
    `load` is told of a busy server. Raises UsageError.
    """
    directory = local_directory(url)
    if directory is not None:
        return FileSource(Path(directory), metrics)
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        raise UsageError(_no_scheme(url))
    known = scheme.lower()
    from gpufs.source import places

    if known not in _SUPPORTED and not places.fsspec_knows(known):
        raise UsageError(_unknown_scheme(scheme))
    if not rest.startswith("//"):
        raise UsageError(_no_slashes(url, known, rest))
    if known == "nfs":
        return places.open_nfs(url, rest[2:], nfs, metrics, load)
    openers = {
        "s3": _open_s3,
        "gs": places.open_gs,
        "az": places.open_az,
        "abfs": places.open_az,
        "abfss": places.open_az,
        "http": places.open_http,
        "https": places.open_http,
    }
    opener = openers.get(known)
    if opener is None:
        return places.open_fsspec(known, rest[2:], metrics, load)
    return opener(url, rest[2:], settings, metrics, load)


def open_configured(config: MountConfig, metrics: Metrics, load: Load | None = None) -> Source:
    """The source of a mount; `load` is told of a busy server. Raises UsageError."""
    from gpufs.source.nfs.settings import NfsSettings
    from gpufs.source.s3.settings import S3Settings

    options = config.options
    settings = S3Settings(
        endpoint_url=options.endpoint_url,
        region=options.region,
        profile=options.profile,
        addressing=options.addressing,
        anonymous=options.anonymous,
        requester_pays=options.requester_pays,
        ca_bundle=options.ca_bundle,
    )
    nfs = NfsSettings(uid=options.nfs_uid, gid=options.nfs_gid, mount_port=options.nfs_mount_port)
    return open_source(config.source, settings, metrics, load, nfs=nfs)


def local_directory(url: str) -> str | None:
    """The absolute path of the directory of this host that `url` names; None for any other source.

    Raises UsageError when it is a file URL of the wrong form.
    """
    if "\0" in url:
        raise UsageError("a source cannot contain a zero byte")
    if url.startswith("/"):
        return url
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "file":
        return None
    if not rest.startswith("//"):
        raise UsageError(_no_slashes(url, "file", rest))
    host, slash, path = rest[2:].partition("/")
    if not slash or host not in ("", "localhost"):
        raise UsageError(f"{url}: a file URL has three slashes; did you mean file:///{rest[2:]} ?")
    return "/" + path


def _open_s3(url: str, rest: str, settings: S3Settings, metrics: Metrics, load: Load | None) -> Source:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or (":" in bucket and "@" in rest):
        raise UsageError("credentials do not belong in a source URL; use a profile or the environment")
    _check_bucket(url, bucket)
    from gpufs.source.s3 import S3Source  # brings boto3 and obstore: only for those who need them

    return S3Source(bucket, os.fsencode(prefix), settings, Retry(metrics, load), metrics)


def _check_bucket(url: str, bucket: str) -> None:
    if not bucket:
        raise UsageError(f"{url}: no bucket; write {_SUPPORTED['s3']}")
    if bucket.startswith("arn:"):
        raise UsageError(f"{url}: use the access point's alias (it ends in -s3alias) in place of its ARN")
    if ":" in bucket:
        raise UsageError(
            f"{url}: {bucket!r} is no bucket name; a server's address goes into the option endpoint_url"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise UsageError(
            f"{url}: {bucket!r} is no bucket name (3 to 255 letters, digits, dots, hyphens, underscores)"
        )


def _no_slashes(url: str, scheme: str, rest: str) -> str:
    meant = f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"
    return f"{url}: after `{scheme}:` come two slashes; did you mean {meant} ?"


def _no_scheme(url: str) -> str:
    if not url:
        return f"no source given; {_supported()}"
    return f"{url}: a directory must be given with its full path, and the rest as a URL; {_supported()}"


def _unknown_scheme(scheme: str) -> str:
    near = difflib.get_close_matches(scheme.lower(), _SUPPORTED, n=1)
    hint = f"did you mean {near[0]}:// ? " if near else ""
    return f"{scheme}: is no kind of source that gpufs knows; {hint}{_supported()}"


def _supported() -> str:
    return "supported are " + ", ".join(_SUPPORTED.values()) + ", and others through fsspec"
