"""Access tokens of Google: whatever Application Default Credentials find, renewed before they end."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC
from typing import Any

from gpufs.errors import AccessDenied
from gpufs.source.base import Origin
from gpufs.source.retry import Transient

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_RENEW_EVERY = 3.0  # seconds between two look-ups after a refusal

_NONE_FOUND = (
    "no Google credentials found: set GOOGLE_APPLICATION_CREDENTIALS to a key file, log in (gcloud auth "
    "application-default login), or use the option anonymous for a public bucket"
)


class Credentials:
    """The credentials of one source; thread-safe. Nothing is looked up before the first token is wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Any = None
        self._transport: Any = None
        self._tried = float("-inf")

    def token(self) -> str:
        """Raises AccessDenied when there is none, Transient when whoever issues them failed."""
        with self._lock:
            if self._found is None:
                self._found, self._transport = _look_up()
            if not self._found.valid:
                _refresh(self._found, self._transport)
            return str(self._found.token)

    def origin(self) -> Origin:
        """Raises as token()."""
        self.token()
        named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        where = f"{type(self._found).__module__}.{type(self._found).__name__}" + (
            f" of {named}" if named else ""
        )
        ends = self._found.expiry  # in UTC, without saying so
        return Origin(where, ends.replace(tzinfo=UTC).timestamp() if ends is not None else None)

    def renew(self) -> bool:
        """Forget what was refused; False when that was done a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._tried < _RENEW_EVERY:
                return False
            self._tried, self._found = now, None
            return True


def _look_up() -> tuple[Any, Any]:
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.urllib3 import Request
    except ImportError as error:
        raise AccessDenied(
            "credentials of Google need a package that is missing: pip install 'gpufs[gs]' "
            "(a public bucket needs none, with the option anonymous)"
        ) from error
    import urllib3

    try:
        found, _ = google.auth.default(scopes=[_SCOPE])
    except GoogleAuthError as error:
        raise AccessDenied(f"{_NONE_FOUND} ({error})") from error
    make: Any = Request  # it has no types
    return found, make(urllib3.PoolManager(retries=False, timeout=10.0))


def _refresh(found: Any, transport: Any) -> None:
    from google.auth.exceptions import GoogleAuthError, TransportError

    try:
        found.refresh(transport)
    except TransportError as error:
        raise Transient(f"no access token could be had: {error}") from error
    except (GoogleAuthError, ValueError) as error:
        raise AccessDenied(f"Google gives no access token: {error}") from error
