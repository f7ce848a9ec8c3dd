"""Bytes of objects: obstore for every key it asks for unchanged, the signed client for the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from gpufs.errors import RemoteFailed, VersionGone
from gpufs.source.flat.versions import condition, is_same
from gpufs.source.retry import Transient

from .credentials import Credentials
from .keys import plain_text
from .location import Location
from .signed import CONNECT_TIMEOUT, READ_TIMEOUT, Answer, SignedClient
from .translate import Subject, of_obstore, refusal_of_answer

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Config, S3Store

# obstore's time limit for a whole request belongs to the store, not to the request: so there is one
# store per limit, made when first needed. The largest one that fits what is left of the deadline is
# used; nearly always that is the first.
_LIMITS = (30.0, 10.0, 3.0, 1.0, 0.3)  # seconds


class Objects:
    """GETs of one bucket that are pinned to a version and answered within a time limit. Thread-safe."""

    def __init__(
        self,
        location: Location,
        credentials: Credentials | None,
        requester_pays: bool,
        signed: SignedClient,
    ) -> None:
        self._location = location
        self._credentials = credentials
        self._requester_pays = requester_pays
        self._signed = signed
        self._lock = threading.Lock()
        self._stores: dict[float, S3Store] = {}

    def get(self, key: bytes, version: str, size: int, offset: int, length: int, budget: float) -> memoryview:
        """`length` bytes (more than 0) of that version. Raises Transient, or a GpufsError for good."""
        text = plain_text(key)
        if text is None:
            data = self._get_signed(key, version, size, offset, length, budget)
        else:
            data = self._get(text, key, version, size, offset, length, budget)
        if len(data) != length:
            raise Transient(f"the body had {len(data)} bytes instead of {length}")
        return data

    def _get(
        self, text: str, key: bytes, version: str, size: int, offset: int, length: int, budget: float
    ) -> memoryview:
        import obstore
        from obstore.exceptions import BaseError

        options: GetOptions = {}
        if (wanted := condition(version)) is not None:
            options["if_match"] = wanted
        if length != size:
            options["range"] = (offset, offset + length)
        store = self._store(budget)
        try:
            result = obstore.get(store, text, options=options)
            meta = result.meta
            mtime_ns = int(meta["last_modified"].timestamp()) * 1_000_000_000
            # A server that does not know If-Match, or was not asked for any, still says what it sends.
            if meta["size"] == size and is_same(version, meta["e_tag"] or "", mtime_ns, size):
                return memoryview(result.bytes())
        except (BaseError, OSError, ValueError) as error:
            raise of_obstore(error, Subject(self._location.bucket, key)) from None  # it quotes headers
        raise VersionGone(f"{Subject(self._location.bucket, key)} was replaced by another version")

    def _get_signed(
        self, key: bytes, version: str, size: int, offset: int, length: int, budget: float
    ) -> memoryview:
        headers = {}
        if (wanted := condition(version)) is not None:
            headers["If-Match"] = wanted
        if length != size:
            headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        subject = Subject(self._location.bucket, key)
        answer = self._signed.send("GET", self._location.url(key), headers, budget, limit=max(length, 4096))
        if answer.status not in (200, 206):
            raise refusal_of_answer(subject, answer.status, answer.headers, bytes(answer.body))
        etag, mtime_ns = answer.headers.get("etag", ""), modified_ns(answer.headers)
        if not is_same(version, etag, mtime_ns, _size_of_object(answer, size)):
            raise VersionGone(f"{subject} was replaced by another version")
        if (answer.status == 206) != ("Range" in headers):
            raise RemoteFailed(f"{subject}: the server does not serve ranges")
        return answer.body

    def _store(self, budget: float) -> S3Store:
        limit = next((x for x in _LIMITS if x <= budget), _LIMITS[-1])
        store = self._stores.get(limit)
        if store is None:
            with self._lock:
                store = self._stores.get(limit)
                if store is None:
                    store = self._stores[limit] = self._make(limit)
        return store

    def _make(self, limit: float) -> S3Store:
        from obstore.store import S3Store

        where = self._location
        # obstore reads AWS_* variables itself: whatever matters here is given, so that they do not
        endpoint = where.base if where.virtual else where.endpoint
        config: S3Config = {
            "region": where.region,
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "virtual_hosted_style_request": where.virtual,
            "skip_signature": self._credentials is None,
            "request_payer": self._requester_pays,
            "s3_express": False,
        }
        client: ClientConfig = {
            "allow_http": True,
            "http1_only": True,  # many connections beat many streams on one
            "pool_max_idle_per_host": "256",
            "pool_idle_timeout": timedelta(seconds=30),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT, limit)),
            "read_timeout": timedelta(seconds=min(READ_TIMEOUT, limit)),
            "timeout": timedelta(seconds=limit),
        }
        if where.ca_bundle is not None:
            with open(where.ca_bundle, "rb") as file:
                client["root_certificate"] = file.read()
        if where.proxy is not None:
            client["proxy_url"] = where.proxy
        return S3Store(
            where.bucket,
            config=config,
            client_options=client,
            retry_config={"max_retries": 0},
            credential_provider=None if self._credentials is None else self._credentials.for_obstore,
        )


def modified_ns(headers: Mapping[str, str]) -> int:
    """The time in Last-Modified, in nanoseconds; 0 for none."""
    text = headers.get("last-modified")
    try:
        return int(parsedate_to_datetime(text).timestamp()) * 1_000_000_000 if text else 0
    except ValueError:
        return 0


def _size_of_object(answer: Answer, expected: int) -> int:
    """The size of the whole object that an answer is a part of; `expected` when it does not say."""
    text = answer.headers.get("content-range", "").rpartition("/")[2] or answer.headers.get(
        "content-length", ""
    )
    return int(text) if text.isdecimal() else expected
