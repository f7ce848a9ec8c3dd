"""A bucket, or what lies under a prefix of it, as a source."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, quote_from_bytes

from gpufs.errors import GpufsError, NotFound, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef, Origin
from gpufs.source.flat.listing import Listed, Listing, NotAListing
from gpufs.source.flat.source import CHECK_DEADLINE, FlatSource
from gpufs.source.flat.versions import version_of
from gpufs.source.retry import Retry, Transient

from .checksum import etag_is_keyed, is_md5, looks_like_md5, matches_stored
from .credentials import Credentials
from .downloads import S3Downloads
from .listing import parse_listing
from .location import Location, configured_endpoint, configured_region, locate, open_session
from .objects import Objects, modified_ns
from .settings import S3Settings
from .signed import Answer, SignedClient
from .translate import CredentialsRefused, Subject, WrongRegion, refusal_of_answer
from .way import Way

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Link:
    """What it takes to talk to the bucket, for one region and one generation of credentials."""

    way: Way
    signed: SignedClient
    objects: Objects
    generation: int

    @property
    def location(self) -> Location:
        return self.way.location


class S3Source(FlatSource):
    """The objects of `bucket` under `prefix` as a tree. Making one does no input or output at all:
    clients are imported, credentials looked up and the region found with the first request."""

    _begins_anywhere = True

    def __init__(
        self, bucket: str, prefix: bytes, settings: S3Settings, retry: Retry, metrics: Metrics
    ) -> None:
        super().__init__(prefix)
        self._bucket = bucket
        self._settings = settings
        self._retry = retry
        self._metrics = metrics
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self._region: str | None = None  # as the server told it
        self._credentials = None if settings.anonymous else Credentials(lambda: open_session(settings))
        self._md5_known = True  # False once an object was met whose ETag is no MD5 though it looks so

    @property
    def id(self) -> str:
        endpoint = configured_endpoint(self._settings)
        name = f"s3://{self._bucket}/{quote_from_bytes(self._base)}"
        return f"{name}?endpoint={endpoint}" if endpoint else name

    def prepare(self) -> None:
        try:
            with suppress(Transient):
                self.connect()
        except GpufsError as error:  # a mount that knows its tree would not ask for long
            _log.warning("nothing can be fetched: %s", error)

    def connect(self) -> None:
        """Find the way; may wait. Raises a GpufsError or Transient."""
        self._connect(CHECK_DEADLINE)

    @property
    def way(self) -> Way | None:
        """To whom requests go now; None as long as none was sent."""
        link = self._link
        return link.way if link is not None else None

    def downloads(self) -> S3Downloads:
        return S3Downloads(lambda: self.way, self.key, self._intact, self._retry.load.trouble, self._metrics)

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        if length == 0:
            return memoryview(b"")
        key = self._base + ref.path

        def attempt(link: _Link, left: float) -> memoryview:
            try:
                data = link.objects.get(key, ref.version, ref.size, offset, length, left)
            except NotFound as error:
                raise VersionGone(f"{Subject(self._bucket, key)} was deleted") from error
            self._metrics.remote_bytes.add(length)
            if length == ref.size and not self._intact(ref, data):
                self._verify(link, key, data, ref.version)
            return data

        return self._run(f"reading {Subject(self._bucket, key)}", attempt, spent=spent, waited=waited)

    def address(self) -> tuple[str, str | None]:
        session = open_session(self._settings)
        region = self._region or configured_region(self._settings, session)
        location = locate(self._bucket, self._settings, session, region)
        return location.url(b""), location.ca_bundle

    def origin(self) -> Origin | None:
        return None if self._credentials is None else self._credentials.origin()

    def close(self) -> None:
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.signed.close()

    # -- requests

    def _name(self, key: bytes) -> str:
        return str(Subject(self._bucket, key))

    def _list(
        self,
        prefix: bytes,
        *,
        delimiter: bool = False,
        token: str | None = None,
        after: bytes = b"",
        limit: int | None = None,
        deadline: float | None = None,
    ) -> Listing:
        query = "list-type=2&encoding-type=url&prefix=" + quote_from_bytes(prefix, safe="-_.~")
        query += "&delimiter=%2F" if delimiter else ""
        query += f"&max-keys={limit}" if limit else ""
        query += "&start-after=" + quote_from_bytes(after, safe="-_.~") if after else ""
        query += f"&continuation-token={quote(token, safe='-_.~')}" if token else ""

        def attempt(link: _Link, left: float) -> Listing:
            answer = link.signed.send("GET", link.location.url(b"", query), {}, left)
            if answer.status != 200:
                raise self._refusal(b"", answer)
            try:
                return parse_listing(bytes(answer.body))
            except NotAListing as error:
                raise Transient(f"the answer is no listing ({error}); is this an S3 endpoint?") from error

        return self._run(f"listing {Subject(self._bucket, prefix)}", attempt, deadline)

    def _head(self, key: bytes, deadline: float | None = None) -> Listed | None:
        """What is stored at `key`; None when nothing is."""

        def attempt(link: _Link, left: float) -> Listed:
            answer = link.signed.send("HEAD", link.location.url(key), {}, left)
            if answer.status != 200:
                raise self._refusal(key, answer)
            size = int(answer.headers.get("content-length", 0))
            mtime_ns = modified_ns(answer.headers)
            version = version_of(answer.headers.get("etag", ""), mtime_ns, size)
            return Listed(key, size, mtime_ns, version)

        try:
            return self._run(f"looking at {Subject(self._bucket, key)}", attempt, deadline)
        except NotFound:
            return None

    def _intact(self, ref: ObjectRef, data: memoryview) -> bool:
        """False when the ETag looks like an MD5 and is not that of `data`."""
        return not (self._md5_known and looks_like_md5(ref.version)) or is_md5(data, ref.version)

    def _verify(self, link: _Link, key: bytes, data: memoryview, etag: str) -> None:
        """Raise Transient when the server's other checksums say too that `data` are other bytes."""
        self._metrics.remote_requests.add()
        answer = link.signed.send("HEAD", link.location.url(key), {"x-amz-checksum-mode": "ENABLED"}, 5.0)
        matches = matches_stored(data, answer.headers) if answer.status == 200 else None
        if matches:
            return
        if matches is None and answer.status == 200 and etag_is_keyed(answer.headers):
            self._md5_known = False
            _log.warning(
                "%s is encrypted with a key of its own, so its ETag is no checksum, and it has no other "
                "that can be checked here: bytes from s3://%s are no longer checked against ETags",
                Subject(self._bucket, key),
                self._bucket,
            )
            return
        raise Transient("the bytes do not match their checksum")

    def _refusal(self, key: bytes, answer: Answer) -> Exception:
        return refusal_of_answer(
            Subject(self._bucket, key), answer.status, answer.headers, bytes(answer.body)
        )

    # -- connection

    def _run(
        self,
        what: str,
        attempt: Callable[[_Link, float], T],
        deadline: float | None = None,
        spent: float = 0.0,
        waited: float = 0.0,
    ) -> T:
        used: _Link | None = None

        def once(left: float) -> T:
            nonlocal used
            used = self._connect(left)
            return attempt(used, left)

        def repair(error: GpufsError) -> bool:
            return used is not None and self._repair(error, used)

        return self._retry.run(what, once, repair=repair, deadline=deadline, spent=spent, waited=waited)

    def _connect(self, left: float) -> _Link:
        link = self._link
        if link is not None:
            return link
        if not self._lock.acquire(timeout=left):
            raise Transient("another request is still trying to connect", timed_out=True)
        try:
            if self._link is None:
                session = open_session(self._settings)
                region = self._region or configured_region(self._settings, session)
                if region is None:
                    region = self._region = self._discover_region(min(left, 10.0))
                location = locate(self._bucket, self._settings, session, region)
                generation = 0
                if self._credentials is not None:
                    self._credentials.current()  # so that "none found" is said here, not inside obstore
                    generation = self._credentials.generation
                pays = self._settings.requester_pays
                signed = SignedClient(location, self._credentials, pays)
                objects = Objects(location, self._credentials, pays, signed)
                self._link = _Link(Way(location, self._credentials, pays), signed, objects, generation)
            return self._link
        finally:
            self._lock.release()

    def _discover_region(self, budget: float) -> str | None:
        """Ask the server without credentials: it names the region even when it refuses or redirects."""
        session = open_session(self._settings)
        location = locate(self._bucket, self._settings, session, None)
        self._metrics.remote_requests.add()
        client = SignedClient(location, None, False)
        try:
            answer = client.send("HEAD", location.url(b""), {}, budget)
        finally:
            client.close()
        return answer.headers.get("x-amz-bucket-region")

    def _repair(self, error: GpufsError, used: _Link) -> bool:
        """True when the request has a chance now: with other credentials, or in another region."""
        if isinstance(error, CredentialsRefused) and self._credentials is not None:
            repaired = self._credentials.renew(used.generation)
        elif isinstance(error, WrongRegion) and self._settings.region is None:
            try:
                region = error.region or self._discover_region(5.0)
            except Transient:
                return False
            repaired = region is not None and region != used.location.region
            if repaired:
                _log.info("bucket %s is in region %s", self._bucket, region)
                self._region = region
        else:
            return False
        if repaired:
            with self._lock:
                if self._link is used:
                    self._link = None
        return repaired
