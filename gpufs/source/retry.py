"""The retry policy of remote requests: what is repeated, how long to wait, and when to give up."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from gpufs.errors import DeadlineExceeded, GpufsError, NotFound, RemoteFailed, VersionGone
from gpufs.metrics import Metrics

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEADLINE = 60.0  # seconds a request may take, repeats included
_BASE, _CAP = 0.05, 5.0  # seconds; the n-th wait is random in [0, min(cap, base * 2**n)] ("full jitter",
# https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)
_LEAST = 0.3  # seconds; with less than that left another attempt is not worth starting
_TELL_AFTER = 2.0  # seconds of failures before the log tells; the reader is told at the deadline
_MAX_REPAIRS = 2  # a repair that does not help twice will not help


class Transient(Exception):
    """A failure worth repeating. `timed_out` tells silence from refusal.

    `busy`: the server said that it is, or did not let us in. Silence says so too.
    """

    def __init__(self, reason: str, *, timed_out: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out
        self.busy = busy or timed_out


class Load(Protocol):
    """Whoever decides how much is asked of the server at once. Thread-safe."""

    def trouble(self, began: float) -> None:
        """A request that was sent at `began` (time.monotonic) met a busy server."""

    def repeat(self, seconds: float) -> AbstractContextManager[None]:
        """Inside, a request may be sent again. Waits for it as long as is good, or for so many seconds."""


class Unheeded:
    """A load that nobody looks at."""

    def trouble(self, began: float) -> None:
        pass

    def repeat(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()


class Retry:
    """Runs attempts until one succeeds, one fails for good, or the deadline is near. Thread-safe."""

    def __init__(
        self,
        metrics: Metrics,
        load: Load | None = None,
        *,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._metrics = metrics
        self.load: Load = load or Unheeded()
        self._deadline = deadline
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def run(
        self,
        what: str,
        attempt: Callable[[float], T],
        *,
        repair: Callable[[GpufsError], bool] | None = None,
        deadline: float | None = None,
        spent: float = 0.0,
        waited: float = 0.0,
    ) -> T:
        """The result of `attempt(seconds left)`, which must not take longer than the seconds it is given.

        An attempt raises Transient to be repeated after a wait; any GpufsError is final, unless
        `repair` returns True for it (say, after renewing credentials): then the attempt is repeated
        at once. Raises DeadlineExceeded when the last failure before the deadline was a timeout,
        RemoteFailed when it was anything else; both name `what` and the last failure. `spent`: seconds
        that a first attempt took, somewhere else, which failed. `waited`: those that passed before all that.
        """
        start = self._clock() - spent - waited
        budget = self._deadline if deadline is None else deadline
        tries = repairs = 0
        told = False
        if spent:
            tries = 1
            self._sleep(self._jitter() * _BASE)
        left = max(budget - (self._clock() - start), _LEAST)  # one attempt in any case: it says what is wrong
        while True:
            tries += 1
            self._metrics.remote_requests.add()
            if tries > 1:
                self._metrics.retries.add()
            began = self._clock()
            try:
                if tries == 1:
                    result = attempt(left)
                else:
                    with self.load.repeat(left - _LEAST):
                        began = self._clock()
                        result = attempt(max(budget - (began - start), _LEAST))
                self._metrics.answer_time.observe(self._clock() - began)
                if told:
                    _log.info("%s: it worked, after %d tries in %.1f s", what, tries, self._clock() - start)
                return result
            except Transient as failure:
                self._metrics.remote_errors.add()
                if failure.busy:
                    self.load.trouble(began)
                wait = self._jitter() * min(_CAP, _BASE * 2.0 ** min(tries - 1, 16))
                spent = self._clock() - start
                if spent + wait + _LEAST > budget:
                    kind = DeadlineExceeded if failure.timed_out else RemoteFailed
                    times = "1 try" if tries == 1 else f"{tries} tries"
                    raise kind(f"{what}: {failure} (gave up after {times} in {spent:.1f} s)") from failure
                if spent >= _TELL_AFTER and not told:
                    told = True
                    _log.warning(
                        "%s fails since %.0f s and is tried again until %.0f s have passed: %s",
                        what,
                        spent,
                        budget,
                        failure,
                    )
                else:
                    _log.debug("%s failed, try %d: %s", what, tries, failure)
                self._sleep(wait)
                left = budget - (self._clock() - start)
            except GpufsError as error:
                if not isinstance(error, (NotFound, VersionGone)):  # those two are answers
                    self._metrics.remote_errors.add()
                left = budget - (self._clock() - start)
                if repairs == _MAX_REPAIRS or left < _LEAST or repair is None or not repair(error):
                    raise
                repairs += 1
