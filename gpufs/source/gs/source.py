"""A bucket of Google Cloud Storage, or what lies under a prefix of it, as a source.

By the JSON API, https://cloud.google.com/storage/docs/json_api/v1: names come as JSON, so any key does, and
a read names its generation. A version is the generation, and the MD5 where the store has one (objects
that were composed of parts have none).
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

from gpufs.errors import NotFound
from gpufs.metrics import Metrics
from gpufs.source.answers import refusal
from gpufs.source.base import Origin
from gpufs.source.flat.listing import Listed, Listing, NotAListing
from gpufs.source.flat.versions import with_md5
from gpufs.source.flat.web import WebStore
from gpufs.source.retry import Load
from gpufs.source.web import Answer

from .credentials import Credentials

_GOOGLE = "https://storage.googleapis.com"
_FIELDS = "name,size,updated,generation,md5Hash"
_NEEDS = "storage.objects.list and storage.objects.get are needed"


class GsSource(WebStore):
    """Making one does no input or output at all."""

    def __init__(
        self,
        bucket: str,
        prefix: bytes,
        endpoint: str | None,
        anonymous: bool,
        ca_bundle: Path | None,
        metrics: Metrics,
        load: Load | None = None,
    ) -> None:
        super().__init__(prefix, ca_bundle, metrics, load)
        self._bucket = bucket
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        self._endpoint = (endpoint or emulator or _GOOGLE).rstrip("/")
        self._api = f"{self._endpoint}/storage/v1/b/{quote(bucket)}/o"
        unsigned = anonymous or (emulator and not endpoint)
        self._credentials = None if unsigned else Credentials()

    @property
    def id(self) -> str:
        name = f"gs://{self._bucket}/{quote_from_bytes(self._base)}"
        return name if self._endpoint == _GOOGLE else f"{name}?endpoint={self._endpoint}"

    def _name(self, key: bytes) -> str:
        return f"gs://{self._bucket}/{key.decode(errors='backslashreplace')}".rstrip("/")

    def _authorise(self, method: str, url: str, headers: dict[str, str], left: float) -> str:
        if self._credentials is not None:
            headers["Authorization"] = f"Bearer {self._credentials.token()}"
        return url

    def origin(self) -> Origin | None:
        return None if self._credentials is None else self._credentials.origin()

    def _renew(self) -> bool:
        return self._credentials is not None and self._credentials.renew()

    def _list_url(self, prefix: bytes, delimiter: bool, token: str | None, limit: int | None) -> str:
        query = f"fields=nextPageToken,prefixes,items({_FIELDS})&prefix={quote_from_bytes(prefix, safe='')}"
        query += "&delimiter=%2F" if delimiter else ""
        query += f"&maxResults={limit or 1000}"
        query += f"&pageToken={quote(token, safe='')}" if token else ""
        return f"{self._api}?{query}"

    def _parse_list(self, answer: Answer) -> Listing:
        try:
            document = json.loads(bytes(answer.body))
            objects = [_listed(item) for item in document.get("items", ())]
            prefixes = [name.encode() for name in document.get("prefixes", ())]
            return Listing(objects, prefixes, document.get("nextPageToken"))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise NotAListing(f"{type(error).__name__}: {error}") from error

    def _head_request(self, key: bytes) -> tuple[str, str, dict[str, str]]:
        return "GET", f"{self._url(key)}?fields={_FIELDS}", {}

    def _parse_head(self, key: bytes, answer: Answer) -> Listed:
        return _listed(json.loads(bytes(answer.body)))

    def _object(self, key: bytes, tag: str) -> tuple[str, dict[str, str]]:
        # Accept-Encoding: or objects stored with Content-Encoding: gzip would come unpacked
        return f"{self._url(key)}?alt=media&generation={tag}", {"Accept-Encoding": "gzip"}

    def _is_version(self, answer: Answer, tag: str) -> bool:
        return answer.headers.get("x-goog-generation", tag) == tag

    def _refusal(self, what: str, answer: Answer) -> Exception:
        if answer.status == 404 and what == self._name(b""):
            return NotFound(f"no such bucket: {self._bucket} (check its name, and endpoint_url if it is set)")
        try:
            said = json.loads(bytes(answer.body))["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = ""
        return refusal(what, answer.status, str(said), _NEEDS, answer.headers)

    def _url(self, key: bytes) -> str:
        return f"{self._api}/{quote_from_bytes(key, safe='')}"


def _listed(item: dict[str, Any]) -> Listed:
    moment = datetime.fromisoformat(item["updated"])
    mtime_ns = int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    version = with_md5(str(item["generation"]), item.get("md5Hash") or "")
    return Listed(item["name"].encode(), int(item["size"]), mtime_ns, version)
