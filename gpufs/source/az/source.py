"""A container of Azure Blob Storage, or what lies under a prefix of it, as a source.

A version is the ETag, and the MD5 where the store has one (Put Blob computes it, block lists have what the
writer gave). Directories of accounts with a hierarchical namespace are blobs there, and are left out.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes
from xml.etree import ElementTree

from gpufs.errors import NotFound, ObjectArchived
from gpufs.metrics import Metrics
from gpufs.source.answers import CredentialsRefused, refusal, request_id, with_id
from gpufs.source.base import Origin
from gpufs.source.flat.keys import quote_key
from gpufs.source.flat.listing import Listed, Listing, NotAListing
from gpufs.source.flat.versions import condition, version_of, with_md5
from gpufs.source.flat.web import WebStore
from gpufs.source.retry import Load
from gpufs.source.web import Answer

from .account import API_VERSION, Account, Tokens, date_now, sas_ends, sign

_NEEDS = "the right to list and to read blobs is needed (role Storage Blob Data Reader)"
_PAGE, _PAGE_OF_ALL = 1000, 5000  # names per answer; 5000 is the most that Azure gives


class AzSource(WebStore):
    """Making one does no input or output at all."""

    def __init__(
        self,
        container: str,
        prefix: bytes,
        account: Account,
        anonymous: bool,
        ca_bundle: Path | None,
        metrics: Metrics,
        load: Load | None = None,
    ) -> None:
        super().__init__(prefix, ca_bundle, metrics, load)
        self._container = container
        self._account = account
        self._tokens = None if anonymous or account.key or account.sas else Tokens()

    @property
    def id(self) -> str:
        place = f"az://{self._container}/{quote_from_bytes(self._base)}"
        return f"{place}?account={self._account.name}&endpoint={self._account.endpoint}"

    def _name(self, key: bytes) -> str:
        return f"az://{self._container}/{key.decode(errors='backslashreplace')}".rstrip("/")

    def _authorise(self, method: str, url: str, headers: dict[str, str], left: float) -> str:
        headers["x-ms-version"] = API_VERSION
        headers["x-ms-date"] = date_now()
        if self._account.key:
            headers["Authorization"] = sign(self._account, method, url, headers)
        elif self._account.sas:
            url += ("&" if "?" in url else "?") + self._account.sas
        elif self._tokens is not None:
            headers["Authorization"] = f"Bearer {self._tokens.token()}"
        return url

    def origin(self) -> Origin | None:
        if self._tokens is not None:
            return self._tokens.origin()
        if self._account.key:
            return Origin("the account's key", None)
        return Origin("a shared access signature", sas_ends(self._account.sas)) if self._account.sas else None

    def _renew(self) -> bool:
        return self._tokens is not None and self._tokens.renew()

    def _list_url(self, prefix: bytes, delimiter: bool, token: str | None, limit: int | None) -> str:
        size = _PAGE if delimiter else _PAGE_OF_ALL
        query = f"restype=container&comp=list&include=metadata&maxresults={limit or size}"
        query += f"&prefix={quote_from_bytes(prefix, safe='')}" if prefix else ""
        query += "&delimiter=%2F" if delimiter else ""
        query += f"&marker={quote(token, safe='')}" if token else ""
        return f"{self._url(b'')}?{query}"

    def _parse_list(self, answer: Answer) -> Listing:
        try:
            root = ElementTree.fromstring(bytes(answer.body))
            if root.tag != "EnumerationResults":
                raise NotAListing(f"unexpected element <{root.tag}>")
            objects = [_listed(blob) for blob in root.iterfind("Blobs/Blob") if not _is_directory(blob)]
            prefixes = [_name_in(element) for element in root.iterfind("Blobs/BlobPrefix")]
            return Listing(objects, prefixes, root.findtext("NextMarker") or None)
        except (ElementTree.ParseError, ValueError) as error:
            raise NotAListing(str(error)) from error

    def _head_request(self, key: bytes) -> tuple[str, str, dict[str, str]]:
        return "HEAD", self._url(key), {}

    def _parse_head(self, key: bytes, answer: Answer) -> Listed | None:
        headers = answer.headers
        if headers.get("x-ms-meta-hdi_isfolder") == "true":
            return None
        size = int(headers.get("content-length", 0))
        tag = version_of(headers.get("etag", ""), answer.modified_ns, size)
        return Listed(key, size, answer.modified_ns, with_md5(tag, headers.get("content-md5", "")))

    def _object(self, key: bytes, tag: str) -> tuple[str, dict[str, str]]:
        wanted = condition(tag)
        return self._url(key), {"If-Match": wanted} if wanted else {}

    def _is_version(self, answer: Answer, tag: str) -> bool:
        return answer.headers.get("etag", "").strip('"') == tag

    def _refusal(self, what: str, answer: Answer) -> Exception:
        text = bytes(answer.body[:4096]).decode(errors="replace")
        code = answer.headers.get("x-ms-error-code", "")
        if code == "ContainerNotFound" or (answer.status == 404 and what == self._name(b"")):
            return NotFound(f"no such container: {self._container} (in the account {self._account.name})")
        if code == "BlobArchived":
            return ObjectArchived(f"{what} is in the archive tier; rehydrate it first")
        found = re.search("<Message>([^<\n]*)", text)
        said = f"{code}: {found[1]}" if found else code
        if code in ("AuthenticationFailed", "InvalidAuthenticationInfo", "AuthorizationFailure"):
            words = with_id(f"{answer.status} {said}", request_id(answer.headers))
            return CredentialsRefused(f"{what}: the credentials are refused ({words})")
        return refusal(what, answer.status, said, _NEEDS, answer.headers)

    def _url(self, key: bytes) -> str:
        place = f"{self._account.endpoint}/{quote(self._container)}"
        return f"{place}/{quote_key(key)}" if key else place


def _name_in(element: ElementTree.Element) -> bytes:
    found = element.find("Name")
    text = (found.text if found is not None else "") or ""
    # XML cannot hold every character: a name with another comes percent-encoded, and says so
    encoded = found is not None and found.get("Encoded") == "true"
    return unquote_to_bytes(text) if encoded else text.encode()


def _is_directory(blob: ElementTree.Element) -> bool:
    return (
        blob.findtext("Properties/ResourceType") == "directory"
        or (blob.findtext("Metadata/hdi_isfolder") or "") == "true"
    )


def _listed(blob: ElementTree.Element) -> Listed:
    about = {element.tag: element.text or "" for element in blob.iterfind("Properties/*")}
    size = int(about["Content-Length"])
    modified = about.get("Last-Modified", "")
    mtime_ns = int(parsedate_to_datetime(modified).timestamp()) * 1_000_000_000 if modified else 0
    tag = version_of(about.get("Etag", ""), mtime_ns, size)
    return Listed(_name_in(blob), size, mtime_ns, with_md5(tag, about.get("Content-MD5", "")))
