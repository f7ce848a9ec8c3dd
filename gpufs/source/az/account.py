"""Where a storage account is and how to get in: the environment, as Azure's own tools read it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpufs.errors import AccessDenied, UsageError
from gpufs.source.base import Origin
from gpufs.source.retry import Transient

API_VERSION = "2021-12-02"
_SCOPE = "https://storage.azure.com/.default"
_RENEW_EVERY = 3.0  # seconds between two look-ups after a refusal
_SPARE = 300.0  # seconds before its end at which a token is replaced


@dataclass(frozen=True, slots=True)
class Account:
    """A storage account. At most one of `key` and `sas` is set; its repr shows neither."""

    name: str
    endpoint: str  # of its blobs, without a final slash
    key: str | None = field(repr=False, default=None)
    sas: str | None = field(repr=False, default=None)


def find_account(name: str | None, endpoint: str | None, anonymous: bool) -> Account:
    """The account that URL, options and environment name together. Raises UsageError."""
    given = _connection_string()
    name = name or given.get("AccountName") or _first("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
    suffix = given.get("EndpointSuffix", "core.windows.net")
    endpoint = endpoint or given.get("BlobEndpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    if name is None and endpoint is None:
        raise UsageError(
            "no storage account: write abfss://container@account.dfs.core.windows.net/prefix, or set "
            "AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"
        )
    if endpoint is None:
        protocol = given.get("DefaultEndpointsProtocol", "https")
        endpoint = f"{protocol}://{name}.blob.{suffix}"
    parts = urlsplit(endpoint)
    if name is None:  # http://127.0.0.1:10000/account of an emulator, https://account.blob... of Azure
        name = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    if anonymous:
        return Account(name, endpoint.rstrip("/"))
    key = given.get("AccountKey") or _first(
        "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"
    )
    sas = given.get("SharedAccessSignature") or _first("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
    return Account(name, endpoint.rstrip("/"), key, None if key or not sas else sas.lstrip("?"))


def _connection_string() -> dict[str, str]:
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def sign(account: Account, method: str, url: str, headers: Mapping[str, str], length: int = 0) -> str:
    """The header Authorization of a request with a body of `length` bytes.

    https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
    """
    parts = urlsplit(url)
    fields = {name.lower(): value for name, value in headers.items()}
    ours = "".join(f"{name}:{fields[name]}\n" for name in sorted(fields) if name.startswith("x-ms-"))
    query = sorted((name.lower(), value) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    resource = f"/{account.name}{parts.path}" + "".join(f"\n{name}:{value}" for name, value in query)
    body = str(length) if length else ""
    rest = [
        "",
        "",
        body,
        "",
        fields.get("content-type", ""),
        "",
        "",
        fields.get("if-match", ""),
        "",
        "",
        fields.get("range", ""),
    ]
    text = "\n".join([method, *rest, ours + resource])
    try:
        secret = base64.b64decode(account.key or "", validate=True)
    except ValueError:
        raise AccessDenied("the account key is not in base64: it was cut or changed") from None
    signature = base64.b64encode(hmac.new(secret, text.encode(), hashlib.sha256).digest()).decode()
    return f"SharedKey {account.name}:{signature}"


def date_now() -> str:
    return formatdate(usegmt=True)


def sas_ends(sas: str) -> float | None:
    """Until when a shared access signature is good, as it says itself."""
    try:
        ends = datetime.fromisoformat(dict(parse_qsl(sas))["se"])
    except (KeyError, ValueError):
        return None
    return (ends if ends.tzinfo is not None else ends.replace(tzinfo=UTC)).timestamp()


class Tokens:
    """Tokens of Entra ID, from whatever DefaultAzureCredential finds; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Any = None
        self._token = ""
        self._ends = 0.0
        self._tried = float("-inf")

    def token(self) -> str:
        """Raises AccessDenied when there is none, Transient when whoever issues them failed."""
        with self._lock:
            if time.time() > self._ends - _SPARE:
                self._ask()
            return self._token

    def origin(self) -> Origin:
        """Raises as token()."""
        self.token()
        return Origin("Entra ID", self._ends)

    def renew(self) -> bool:
        """Forget what was refused; False when that was done a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._tried < _RENEW_EVERY:
                return False
            self._tried, self._found, self._ends = now, None, 0.0
            return True

    def _ask(self) -> None:
        try:
            from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
            from azure.identity import DefaultAzureCredential
        except ImportError as error:
            raise AccessDenied(
                "no key in the environment (AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or "
                "AZURE_STORAGE_CONNECTION_STRING), and other credentials of Azure need a package that is "
                "missing: pip install 'gpufs[az]'; a public container needs the option anonymous"
            ) from error
        try:
            if self._found is None:
                self._found = DefaultAzureCredential()
            issued = self._found.get_token(_SCOPE)
        except ServiceRequestError as error:
            raise Transient(f"no token could be had: {error}") from error
        except ClientAuthenticationError as error:
            raise AccessDenied(
                "no Azure credentials found: set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, log in "
                f"(az login), or use the option anonymous for a public container ({error.message})"
            ) from error
        self._token, self._ends = issued.token, float(issued.expires_on)
