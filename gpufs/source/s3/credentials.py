"""Credentials: boto3's whole chain, refreshed as they age and looked up anew when they are refused."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpufs.errors import AccessDenied, GpufsError
from gpufs.source.base import Origin
from gpufs.source.retry import Transient

if TYPE_CHECKING:
    from obstore.store import S3Credential

_log = logging.getLogger(__name__)

_RENEW_EVERY = 3.0  # seconds between two look-ups after a refusal
# botocore renews temporary credentials 10 minutes before they end at the latest, so what it hands
# out is good for that long; obstore asks again 5 minutes before the time it is told.
_GOOD_FOR = timedelta(minutes=10)

NO_CREDENTIALS = (
    "no AWS credentials found: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a "
    "profile (option profile), log in (aws sso login), or use the option anonymous for a public bucket"
)


@dataclass(frozen=True, slots=True)
class Secret:
    """One set of credentials. Its repr shows none of them."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)


class Credentials:
    """The credentials of one source; thread-safe. `open_session` makes a botocore session that has
    read environment and files afresh."""

    def __init__(self, open_session: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._open_session = open_session
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Any = None  # botocore Credentials: refreshes itself where the provider can
        self._tried = float("-inf")
        self.generation = 0  # grows with every renewal

    def current(self) -> Secret:
        """The credentials to sign with now.

        Raises AccessDenied when there are none, Transient when their provider failed.
        """
        with self._lock:
            if self._found is None:
                self._found = self._look_up()
            try:
                return self._freeze(self._found)
            except AccessDenied:
                # what it refreshes itself with may be out of date too (a role taken on with keys of a
                # file that was rotated since): look the whole chain up again
                if not self._may_look_up():
                    raise
                self._found = self._look_up()
                self.generation += 1
                return self._freeze(self._found)

    def origin(self) -> Origin:
        """Raises as current()."""
        self.current()
        ends = getattr(self._found, "_expiry_time", None)  # only of those that can be renewed
        return Origin(f"{self._found.method}", ends.timestamp() if ends is not None else None)

    def renew(self, refused: int) -> bool:
        """Look the credentials up anew after the server refused those of generation `refused`.

        True when there are others now. At most one look-up every few seconds.
        """
        with self._lock:
            if refused != self.generation:
                return True
            if not self._may_look_up():
                return False
            try:
                found = self._look_up()
                fresh = self._freeze(found)
                old = None if self._found is None else self._freeze(self._found)
            except (GpufsError, Transient) as error:
                _log.warning("the credentials were refused and no others could be found: %s", error)
                return False
            if fresh == old:
                _log.warning(
                    "the credentials were refused, and the environment and profile have no others yet"
                )
                return False
            self._found = found
            self.generation += 1
            _log.info("the credentials were refused; new ones are in use now")
            return True

    def for_obstore(self) -> S3Credential:
        """obstore's credential_provider."""
        secret = self.current()
        temporary = secret.token is not None
        return {
            "access_key_id": secret.access_key,
            "secret_access_key": secret.secret_key,
            "token": secret.token,
            "expires_at": datetime.now(UTC) + _GOOD_FOR if temporary else None,
        }

    def _may_look_up(self) -> bool:
        """True at most once every few seconds."""
        now = self._clock()
        if now - self._tried < _RENEW_EVERY:
            return False
        self._tried = now
        return True

    def _look_up(self) -> Any:
        from botocore.exceptions import BotoCoreError

        try:
            found = self._open_session().get_credentials()
        except BotoCoreError as error:
            raise AccessDenied(f"credentials cannot be loaded: {error}") from error
        if found is None:
            raise AccessDenied(NO_CREDENTIALS)
        return found

    @staticmethod
    def _freeze(found: Any) -> Secret:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            frozen = found.get_frozen_credentials()
        except HTTPClientError as error:
            raise Transient(f"credentials cannot be refreshed: {error}") from error
        except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: expired after refresh
            raise AccessDenied(f"credentials cannot be refreshed: {error}") from error
        return Secret(frozen.access_key, frozen.secret_key, frozen.token or None)  # "" is none
