"""Files of a web server: what a HEAD tells of one, and its bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit, urlunsplit

from gpufs.errors import VersionGone
from gpufs.metrics import Metrics
from gpufs.source import netrc
from gpufs.source.answers import refusal
from gpufs.source.base import ObjectRef, Origin
from gpufs.source.flat.versions import condition, is_same, version_of
from gpufs.source.ranges import get_range
from gpufs.source.retry import Load, Retry
from gpufs.source.web import Answer, Web

_REDIRECTS = 5
_MOST_TEXT = 1 << 30  # bytes of an index page or a manifest
_NEEDS = "name and password belong into ~/.netrc"
# Left as they are in a path, besides letters and digits (RFC 3986, 3.3).
_PLAIN = "/-_.~!$&'()*+,;=:@"


class Seen(NamedTuple):
    """What a HEAD told of a file; `size` is None where the server does not tell."""

    size: int | None
    mtime_ns: int
    version: str


class HttpFiles:
    """Everything below `base` (a URL that ends in a slash); thread-safe. Paths are as in Source."""

    def __init__(self, base: str, ca_bundle: Path | None, metrics: Metrics, load: Load | None = None) -> None:
        parts = urlsplit(base)
        self.root = unquote_to_bytes(parts.path)
        self._place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        self.base = self._place + quote_from_bytes(self.root, safe=_PLAIN)
        self._user = parts.netloc.rpartition("@")[0]
        self._metrics = metrics
        self._retry = Retry(metrics, load)
        self._ca_bundle = ca_bundle
        self._web = Web(ca_bundle, _REDIRECTS)
        self._headers: dict[str, str] | None = None

    def url(self, path: bytes) -> str:
        return self._place + quote_from_bytes(self.root + path, safe=_PLAIN)

    def get_text(self, path: bytes, deadline: float | None = None, etag: str = "") -> Answer:
        """A whole answer of status 200, or 304 when it still has that ETag. Raises NotFound."""
        what = self.url(path)

        def attempt(left: float) -> Answer:
            headers = self._authorised() | ({"If-None-Match": etag} if etag else {})
            answer = self._web.send("GET", what, headers, left, limit=_MOST_TEXT)
            if answer.status not in (200, 304):
                raise self._refusal(what, answer)
            return answer

        return self._retry.run(f"listing {what}", attempt, deadline=deadline)

    def head(self, path: bytes) -> Seen:
        """Raises NotFound, also when what is there is a directory (the server redirects to one)."""
        what = self.url(path)

        def attempt(left: float) -> Seen:
            answer = self._web.send("HEAD", what, self._authorised(), left)
            if answer.status != 200:
                raise self._refusal(what, answer)
            if answer.url.endswith("/") and not what.endswith("/"):
                return Seen(None, 0, "")
            text = answer.headers.get("content-length", "")
            size = int(text) if text.isdecimal() else None
            return Seen(
                size,
                answer.modified_ns,
                version_of(answer.headers.get("etag", ""), answer.modified_ns, size or 0),
            )

        return self._retry.run(f"looking at {what}", attempt)

    def read(
        self,
        ref: ObjectRef,
        offset: int,
        length: int,
        spent: float,
        waited: float,
        is_version: Callable[[Answer], bool] | None = None,
    ) -> memoryview:
        if length == 0:
            return memoryview(b"")
        what = self.url(ref.path)

        def same(answer: Answer) -> bool:
            etag = answer.headers.get("etag", "")
            return is_same(ref.version, etag, answer.modified_ns, ref.size)

        def attempt(left: float) -> memoryview:
            def request(headers: dict[str, str]) -> str:
                headers |= self._authorised()
                if is_version is None and (wanted := condition(ref.version)) is not None:
                    headers["If-Match"] = wanted
                return what

            data = get_range(
                self._web,
                what,
                request,
                ref.size,
                offset,
                length,
                left,
                is_version=is_version or same,
                refusal=lambda answer: self._gone(what, answer),
            )
            self._metrics.remote_bytes.add(length)
            return data

        return self._retry.run(f"reading {what}", attempt, spent=spent, waited=waited)

    def address(self) -> tuple[str, str | None]:
        return self.base, str(self._ca_bundle) if self._ca_bundle else None

    def origin(self) -> Origin | None:
        return Origin("~/.netrc", None) if "Authorization" in self._authorised() else None

    def close(self) -> None:
        self._web.close()

    def _authorised(self) -> dict[str, str]:
        if self._headers is None:
            self._headers = _from_netrc(self._place, self._user)
        # raw bytes, not packed ones: sizes must be those of the listing
        return {"Accept-Encoding": "identity"} | self._headers

    def _gone(self, what: str, answer: Answer) -> Exception:
        error = self._refusal(what, answer)
        # a server without If-Match may still redirect from a file that became a directory
        return VersionGone(f"{what} is no file any more") if answer.status in (301, 302) else error

    def _refusal(self, what: str, answer: Answer) -> Exception:
        return refusal(what, answer.status, "", _NEEDS, answer.headers)


class FilesSource:
    """What sources have in common whose files are `_files`."""

    _files: HttpFiles

    def key(self, path: bytes) -> bytes:
        return self._files.url(path).encode()

    def prepare(self) -> None:
        pass

    def downloads(self) -> None:
        return None

    def address(self) -> tuple[str, str | None]:
        return self._files.address()

    def origin(self) -> Origin | None:
        return self._files.origin()

    def close(self) -> None:
        self._files.close()


def _from_netrc(place: str, user: str) -> dict[str, str]:
    """Basic authentication with what ~/.netrc has for this host."""
    found = netrc.find(urlsplit(place).hostname or "", user)
    if found is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(":".join(found).encode()).decode()}
