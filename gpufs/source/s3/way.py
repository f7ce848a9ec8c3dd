"""To whom requests go now, and signed by whom, for a thread that must not wait for the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .credentials import Credentials, Secret
from .location import Location

_SECRET_HOLDS = 60.0  # seconds until the credentials are asked for again


@dataclass(frozen=True, slots=True)
class Way:
    """A place, and whose requests they are (None: they are not signed)."""

    location: Location
    credentials: Credentials | None
    requester_pays: bool


class Signpost:
    """The way and the secret to sign with. Lives in one thread."""

    def __init__(self, way: Callable[[], Way | None]) -> None:
        """`way` gives None as long as nobody has connected."""
        self._find_way = way
        self.way: Way | None = None
        self.secret: Secret | None = None
        self._until = 0.0
        self._asking = threading.Lock()  # held while a thread asks for the credentials

    def ready(self) -> bool:
        """Whether `way` and `secret` are known. Never waits."""
        way = self._find_way()
        if way is None:
            return False
        if way is not self.way:
            self.way = way
            self._until = 0.0
            self.secret = None
        if way.credentials is None:
            return True
        if time.monotonic() > self._until and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, args=[way], name="gpufs credentials", daemon=True).start()
        return self.secret is not None

    def _ask(self, way: Way) -> None:
        """Thread: the credentials may have to be renewed, which takes requests of its own."""
        try:
            assert way.credentials is not None
            secret = way.credentials.current()
            if way is self.way:
                self.secret = secret
                self._until = time.monotonic() + _SECRET_HOLDS
        except Exception:
            self.secret = None  # who waits for the answer will say why
        finally:
            self._asking.release()
