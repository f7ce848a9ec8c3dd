"""A flat store that is asked by plain HTTP requests with an authorisation in their headers or URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpufs.errors import GpufsError, NotFound
from gpufs.metrics import Metrics
from gpufs.source.answers import CredentialsRefused
from gpufs.source.base import ObjectRef
from gpufs.source.ranges import check_md5, get_range
from gpufs.source.retry import Load, Retry, Transient
from gpufs.source.web import Answer, Web

from .listing import Listed, Listing, NotAListing
from .source import FlatSource
from .versions import split_md5

T = TypeVar("T")


class WebStore(FlatSource):
    """What Google's and Azure's stores have in common. A kind of store adds the methods that raise
    NotImplementedError; `tag` is its own part of a version, without the checksum."""

    def __init__(
        self, prefix: bytes, ca_bundle: Path | None, metrics: Metrics, load: Load | None = None
    ) -> None:
        super().__init__(prefix)
        self._metrics = metrics
        self._retry = Retry(metrics, load)
        self._ca_bundle = ca_bundle
        self._web = Web(ca_bundle)

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        if length == 0:
            return memoryview(b"")
        key = self._base + ref.path
        tag, md5 = split_md5(ref.version)
        what = self._name(key)

        def attempt(left: float) -> memoryview:
            def request(headers: dict[str, str]) -> str:
                url, more = self._object(key, tag)
                headers |= more
                return self._authorise("GET", url, headers, left)

            data = get_range(
                self._web,
                what,
                request,
                ref.size,
                offset,
                length,
                left,
                is_version=lambda answer: self._is_version(answer, tag),
                refusal=lambda answer: self._refusal(what, answer),
            )
            self._metrics.remote_bytes.add(length)
            if md5 and length == ref.size:
                check_md5(data, md5)
            return data

        return self._run(f"reading {what}", attempt, spent=spent, waited=waited)

    def prepare(self) -> None:
        pass

    def downloads(self) -> None:
        return None

    def close(self) -> None:
        self._web.close()

    def address(self) -> tuple[str, str | None]:
        ca_bundle = str(self._ca_bundle) if self._ca_bundle else None
        return self._list_url(b"", False, None, 1), ca_bundle

    def _list(
        self,
        prefix: bytes,
        *,
        delimiter: bool = False,
        token: str | None = None,
        after: bytes = b"",  # not given: these stores continue, but do not begin anywhere
        limit: int | None = None,
        deadline: float | None = None,
    ) -> Listing:
        what = self._name(prefix)

        def attempt(left: float) -> Listing:
            headers: dict[str, str] = {}
            url = self._list_url(prefix, delimiter, token, limit)
            answer = self._web.send("GET", self._authorise("GET", url, headers, left), headers, left)
            if answer.status != 200:
                raise self._refusal(self._name(b"") if answer.status == 404 else what, answer)
            try:
                return self._parse_list(answer)
            except NotAListing as error:
                raise Transient(f"the answer is no listing ({error}); check the address") from error

        return self._run(f"listing {what}", attempt, deadline)

    def _head(self, key: bytes, deadline: float | None = None) -> Listed | None:
        what = self._name(key)

        def attempt(left: float) -> Listed | None:
            method, url, headers = self._head_request(key)
            answer = self._web.send(method, self._authorise(method, url, headers, left), headers, left)
            if answer.status != 200:
                raise self._refusal(what, answer)
            return self._parse_head(key, answer)

        try:
            return self._run(f"looking at {what}", attempt, deadline)
        except NotFound:
            return None

    def _run(
        self,
        what: str,
        attempt: Callable[[float], T],
        deadline: float | None = None,
        spent: float = 0.0,
        waited: float = 0.0,
    ) -> T:
        def repair(error: GpufsError) -> bool:
            return isinstance(error, CredentialsRefused) and self._renew()

        return self._retry.run(what, attempt, repair=repair, deadline=deadline, spent=spent, waited=waited)

    # -- what a kind of store adds

    def _authorise(self, method: str, url: str, headers: dict[str, str], left: float) -> str:
        """The URL to use; what belongs into `headers` is added to them. Raises AccessDenied, Transient."""
        raise NotImplementedError

    def _renew(self) -> bool:
        """Whether there may be other credentials, after a refusal."""
        raise NotImplementedError

    def _list_url(self, prefix: bytes, delimiter: bool, token: str | None, limit: int | None) -> str:
        raise NotImplementedError

    def _parse_list(self, answer: Answer) -> Listing:
        """Raises NotAListing."""
        raise NotImplementedError

    def _head_request(self, key: bytes) -> tuple[str, str, dict[str, str]]:
        """Method, URL and headers that ask for what is known of an object."""
        raise NotImplementedError

    def _parse_head(self, key: bytes, answer: Answer) -> Listed | None:
        """None when it stands for a directory."""
        raise NotImplementedError

    def _object(self, key: bytes, tag: str) -> tuple[str, dict[str, str]]:
        """URL and headers that ask for the bytes of that version, and no other."""
        raise NotImplementedError

    def _is_version(self, answer: Answer, tag: str) -> bool:
        raise NotImplementedError

    def _refusal(self, what: str, answer: Answer) -> Exception:
        raise NotImplementedError
