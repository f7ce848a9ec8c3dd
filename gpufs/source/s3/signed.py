"""Signed HTTP requests with keys exactly as given: LIST, HEAD, and GET of keys obstore cannot ask for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpufs.errors import GpufsError
from gpufs.source.retry import Transient

from .credentials import Credentials
from .location import Location
from .translate import of_transport

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 10.0  # seconds without a byte
_PIECE = 256 * 1024
_POOL = 64  # connections kept


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of any status; `headers` has lower-case names, `body` is raw (no decoding)."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


class SignedClient:
    """Sends requests about one bucket; unsigned when `credentials` is None. Thread-safe."""

    def __init__(self, location: Location, credentials: Credentials | None, requester_pays: bool) -> None:
        from botocore.httpsession import URLLib3Session

        self._region = location.region
        self._credentials = credentials
        self._requester_pays = requester_pays
        self._host = urlsplit(location.endpoint).netloc
        scheme = urlsplit(location.endpoint).scheme
        self._http: Any = URLLib3Session(
            verify=location.ca_bundle or True,
            proxies={scheme: location.proxy} if location.proxy else None,
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
            max_pool_connections=_POOL,
        )

    def send(
        self, method: str, url: str, headers: Mapping[str, str], budget: float, limit: int | None = None
    ) -> Answer:
        """One request, answered within `budget` seconds (and one read timeout for a slow header).

        A body longer than `limit` bytes is not read to its end. Raises Transient, AccessDenied,
        RemoteFailed; an answer of any status is returned.
        """
        end = time.monotonic() + budget
        request = self._signed(method, url, headers)
        request.stream_output = True
        try:
            response = self._http.send(request)
            try:
                body = self._read(response.raw, end, limit)
            finally:
                response.raw.close()  # a connection read to its end is back in the pool already
        except (GpufsError, Transient):
            raise
        except Exception as error:
            raise of_transport(error, self._host) from error
        fields = {name.lower(): value for name, value in response.headers.items()}
        if method != "HEAD" and limit is None and len(body) < int(fields.get("content-length", 0)):
            raise Transient("the connection broke (the body was too short)")
        return Answer(response.status_code, fields, memoryview(body).toreadonly())

    def close(self) -> None:
        self._http.close()

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Any:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials as BotocoreCredentials

        fields = dict(headers)
        # urllib3 would ask for gzip, and some servers would then compress: sizes must be those stored
        fields["Accept-Encoding"] = "identity"
        if self._requester_pays:
            fields["x-amz-request-payer"] = "requester"
        request = AWSRequest(method, url, headers=fields)
        if self._credentials is not None:
            secret = self._credentials.current()
            signer = S3SigV4Auth(
                BotocoreCredentials(secret.access_key, secret.secret_key, secret.token), "s3", self._region
            )
            signer.add_auth(request)
        return request.prepare()

    @staticmethod
    def _read(raw: Any, end: float, limit: int | None) -> bytearray:
        """The body piece by piece, as it arrives, so that a dribbling server cannot outlast `end`."""
        body = bytearray()
        while limit is None or len(body) <= limit:
            piece = raw.read1(_PIECE, decode_content=False)
            if not piece:
                break
            body += piece
            if time.monotonic() > end:
                raise Transient("the server did not send all in time", timed_out=True)
        return body
