"""Where a bucket is: endpoint, region, addressing, CA bundle and proxy, from settings and AWS files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gpufs.errors import UsageError
from gpufs.source.flat.keys import quote_key

from .settings import S3Settings

# Suffixes of the partitions: https://docs.aws.amazon.com/general/latest/gr/s3.html
_PARTITIONS = (
    ("cn-", "amazonaws.com.cn"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eusc-", "amazonaws.eu"),
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where requests for one bucket go. `base` is the URL of the bucket itself, without a final slash."""

    bucket: str
    region: str
    endpoint: str  # without the bucket
    virtual: bool
    ca_bundle: str | None
    proxy: str | None

    @property
    def base(self) -> str:
        if not self.virtual:
            return f"{self.endpoint}/{self.bucket}"
        scheme, host, path, _, _ = urlsplit(self.endpoint)
        return urlunsplit((scheme, f"{self.bucket}.{host}", path, "", ""))

    def url(self, key: bytes, query: str = "") -> str:
        """URL of an object, or of the bucket when `key` is empty."""
        url = f"{self.base}/{quote_key(key)}" if key or self.virtual else self.base
        return f"{url}?{query}" if query else url


def open_session(settings: S3Settings) -> Any:
    """A botocore session that reads environment and files afresh. Raises UsageError: no such profile."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session(profile=settings.profile)
    try:
        session.get_scoped_config()
    except BotoCoreError as error:  # no such profile, or a file that cannot be parsed
        raise UsageError(f"AWS configuration: {error}") from error
    return session


def configured_endpoint(settings: S3Settings) -> str | None:
    """The custom endpoint, None for AWS; does not import botocore unless a profile may name one."""
    found = settings.endpoint_url
    if found is None and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if not found and _config_names_an_endpoint():
            found = _endpoint_of_profile(open_session(settings))
    if not found:
        return None
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"endpoint_url must look like https://host:port, not {parts.scheme or 'this'}")
    if parts.username or parts.password:
        raise UsageError("endpoint_url must not contain a user name or password")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _config_names_an_endpoint() -> bool:
    path = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    try:
        return b"endpoint_url" in path.read_bytes()
    except OSError:
        return False


def _endpoint_of_profile(session: Any) -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider

    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    found: str | None = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    return found


def locate(bucket: str, settings: S3Settings, session: Any, region: str | None) -> Location:
    """The location of `bucket`, in `region` (us-east-1 when it is not known)."""
    from botocore.utils import get_environ_proxies

    custom = configured_endpoint(settings)
    region = region or "us-east-1"
    suffix = next((s for p, s in _PARTITIONS if region.startswith(p)), "amazonaws.com")
    endpoint = custom or f"https://s3.{region}.{suffix}"
    virtual = settings.addressing == "virtual" or (
        settings.addressing == "auto" and custom is None and "." not in bucket
    )
    ca_bundle = settings.ca_bundle or session.get_config_variable("ca_bundle")
    ca_bundle = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE")
    location = Location(bucket, region, endpoint, virtual, str(ca_bundle) if ca_bundle else None, None)
    proxy = get_environ_proxies(location.base).get(urlsplit(endpoint).scheme)
    return Location(bucket, region, endpoint, virtual, location.ca_bundle, proxy)


def configured_region(settings: S3Settings, session: Any) -> str | None:
    """The region of the option, the environment or the profile."""
    if settings.region:
        return settings.region
    # AWS_REGION is what other SDKs read (and what ECS and Lambda set); botocore reads only the second.
    found: str | None = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    return found or None
