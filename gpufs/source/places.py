"""From a URL of one of the other kinds of store to its source; nothing is imported that is not needed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpufs.errors import UsageError
from gpufs.metrics import Metrics
from gpufs.source.base import Source
from gpufs.source.retry import Load, Retry

if TYPE_CHECKING:
    from gpufs.source.nfs import NfsSettings
    from gpufs.source.s3.settings import S3Settings

# https://cloud.google.com/storage/docs/buckets#naming, and what Azure allows containers (with $root, $web)
_GS_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CONTAINER = re.compile(r"\$root|\$web|\$logs|[a-z0-9](?:-?[a-z0-9]){2,62}")


def open_gs(url: str, rest: str, settings: S3Settings, metrics: Metrics, load: Load | None) -> Source:
    bucket, _, prefix = rest.partition("/")
    if not _GS_BUCKET.fullmatch(bucket):
        raise UsageError(f"{url}: {bucket!r} is no bucket name; write gs://bucket[/prefix]")
    refuse_password(settings.endpoint_url or "", urlsplit(settings.endpoint_url or "").netloc)
    from gpufs.source.gs import GsSource

    return GsSource(
        bucket,
        os.fsencode(prefix),
        settings.endpoint_url,
        settings.anonymous,
        settings.ca_bundle,
        metrics,
        load,
    )


def open_az(url: str, rest: str, settings: S3Settings, metrics: Metrics, load: Load | None) -> Source:
    place, _, prefix = rest.partition("/")
    container, at, host = place.partition("@")
    if ":" in place or not _CONTAINER.fullmatch(container) or (at and "." not in host):
        raise UsageError(
            f"{url}: no container; write az://container[/prefix] with AZURE_STORAGE_ACCOUNT in the "
            "environment, or abfss://container@account.dfs.core.windows.net[/prefix]"
        )
    refuse_password(settings.endpoint_url or "", urlsplit(settings.endpoint_url or "").netloc)
    from gpufs.source.az import AzSource, find_account

    name, endpoint = None, settings.endpoint_url
    if at:
        name = host.partition(".")[0]
        endpoint = endpoint or "https://" + host.replace(".dfs.", ".blob.", 1)
    account = find_account(name, endpoint, settings.anonymous)
    return AzSource(
        container, os.fsencode(prefix), account, settings.anonymous, settings.ca_bundle, metrics, load
    )


def open_nfs(
    url: str, rest: str, settings: NfsSettings | None, metrics: Metrics, load: Load | None
) -> Source:
    from gpufs.source.nfs import NfsSettings, NfsSource, parse_place

    return NfsSource(parse_place(url, rest), settings or NfsSettings(), Retry(metrics, load), metrics)


def open_http(url: str, rest: str, settings: S3Settings, metrics: Metrics, load: Load | None) -> Source:
    parts = urlsplit(url)
    refuse_password(url, parts.netloc)
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(
            f"{url}: write https://host/path/ for a directory of which the server shows an index, or "
            "https://host/path/list.csv for a manifest"
        )
    from gpufs.source.http import HttpSource, ManifestSource

    kind = HttpSource if not parts.path or parts.path.endswith("/") else ManifestSource
    return kind(url if parts.path else url + "/", settings.ca_bundle, metrics, load)


# What fsspec knows and people mount, by which they are told what is missing when fsspec itself is.
_BY_FSSPEC = frozenset("ftp ftps sftp ssh smb hdfs webhdfs hf dropbox gdrive github box oci oss".split())


def fsspec_knows(scheme: str) -> bool:
    if scheme in _BY_FSSPEC:
        return True
    if scheme in ("s3a", "gcs"):  # ours have other names
        return False
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in known_implementations or scheme in registry


def open_fsspec(scheme: str, rest: str, metrics: Metrics, load: Load | None) -> Source:
    refuse_password(f"{scheme}://{rest}", rest.partition("/")[0])
    from gpufs.source.fsspec import FsspecSource

    return FsspecSource(scheme, rest, metrics, load)


def refuse_password(url: str, place: str) -> None:
    """Raise UsageError, without repeating it, when the URL holds a password."""
    user, at, host = place.rpartition("@")
    if at and ":" in user:
        scheme = url.partition(":")[0]
        raise UsageError(
            f"{scheme}://{user.partition(':')[0]}:***@{host}: a password does not belong in a source URL, "
            "where every user of this host can read it; docs/sources.md says where it can be kept"
        )
