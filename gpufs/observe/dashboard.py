"""`gpufs dashboard` at work: asks a daemon once a second, and serves a page with the last ten minutes."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from gpufs.errors import GpufsError
from gpufs.observe.figures import Figures
from gpufs.observe.history import History
from gpufs.observe.limit import Verdict
from gpufs.observe.rates import Interval, summary
from gpufs.observe.web import NOT_FOUND, Page, WebServer

INTERVAL = 1.0  # seconds
KEPT = 600  # points
MOST_SHOWN = 50  # processes
_GAUGES = "cache_bytes cache_limit_bytes requests_under_way requests_allowed".split()

Ask = Callable[[], Figures]


class Recorder:
    """Asks again and again, and keeps what a page wants to know. Its methods may be called in any thread."""

    def __init__(self, ask: Ask, first: Figures, now: Callable[[], float] = time.time) -> None:
        """`now`: seconds since 1970."""
        self._ask = ask
        self._now = now
        self._history = History(first)
        self._latest = first
        self._verdict: Verdict | None = None
        self._stalls: list[dict[str, Any]] = []
        self._error: str | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        """For ever."""
        while True:
            time.sleep(INTERVAL)
            self.look()

    def look(self) -> None:
        try:
            figures = self._ask()
        except GpufsError as error:  # it may be starting anew
            with self._lock:
                self._error = str(error)
            return
        interval, verdict = self._history.add(figures)
        with self._lock:
            self._error = None
            self._latest, self._verdict = figures, verdict
            self._take(interval)

    def _take(self, interval: Interval) -> None:
        point = asdict(summary(interval))
        self._stalls = point.pop("stalls")[:MOST_SHOWN]
        self._number += 1
        gauges = {name: interval.now.gauges[name] for name in _GAUGES}
        self._points.append({"n": self._number, "t": self._now(), **gauges, **point})

    def document(self, since: int) -> dict[str, Any]:
        """The points after number `since`; all else as it is now."""
        with self._lock:
            latest = self._latest
            return {
                "mountpoint": _text(latest.mountpoint),
                "source": _text(latest.source),
                "version": latest.version,
                "error": None if self._error is None else _text(self._error),
                "limit": None if self._verdict is None else asdict(self._verdict),
                "gauges": dict(latest.gauges),
                "stalls": self._stalls,
                "points": [point for point in self._points if point["n"] > since],
            }


def serve(ask: Ask, port: int) -> None:
    """On loopback, until interrupted. Raises what the first `ask` does.

    Whoever is on this host can reach the port, and every page in a browser can try to; so the page lies
    under a name that nobody can guess.
    """
    recorder = Recorder(ask, ask())
    token = secrets.token_urlsafe(16)
    with WebServer("127.0.0.1", port, answers(recorder, token)) as server:
        threading.Thread(target=recorder.run, daemon=True).start()
        print(f"{server.address}/{token}/", flush=True)
        server.serve_forever()


def answers(recorder: Recorder, token: str) -> Callable[[str, str], Page]:
    """The page, and `figures/N`: what came after point N."""
    template = files("gpufs.observe").joinpath("page.html").read_text()

    def answer(path: str, accept: str) -> Page:
        _, given, *rest = path.split("/")
        if not secrets.compare_digest(given.encode(), token.encode()):
            return NOT_FOUND
        match rest:
            case []:
                return Page(b"", "text/plain", HTTPStatus.MOVED_PERMANENTLY, {"Location": f"/{token}/"})
            case [""]:
                return _page(template)
            case ["figures", number] if number.isdecimal() and len(number) < 16:
                body = json.dumps(recorder.document(int(number))).encode()
                return Page(body, "application/json")
        return NOT_FOUND

    return answer


def _page(template: str) -> Page:
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    body = template.replace("NONCE", nonce).encode()
    return Page(body, "text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


def _text(text: str) -> str:
    """A name may have any byte in it; JSON is UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
