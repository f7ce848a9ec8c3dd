"""An index page as nginx, Apache, lighttpd, Caddy or Python's http.server write it: the names it links to."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes, urljoin, urlsplit


def names_in(page: str, base: str, root: bytes) -> list[bytes]:
    """The direct children of the directory at `base` (its path is `root`), directories with a final slash.

    Links to anywhere else, with a query (column headings that sort) or a fragment are none.
    """
    parser = _Links()
    parser.feed(page)
    parser.close()
    place = urlsplit(base)
    names: dict[bytes, None] = {}
    for href in parser.found:
        # before it is joined: a name with a colon is a scheme for urljoin, and `.` and `..` are resolved
        link = urlsplit(href)
        if href.startswith(("?", "#")) or link.query or link.fragment:
            continue
        path = href
        if link.scheme in ("http", "https") or href.startswith("//"):
            link = urlsplit(urljoin(base, href))
            if link.netloc != place.netloc:
                continue
            path = link.path
        raw = unquote_to_bytes(path)
        if path.startswith("/"):
            if not raw.startswith(root):
                continue
            raw = raw[len(root) :]
        else:
            raw = raw.removeprefix(b"./")
        name = raw.removesuffix(b"/")
        if name and b"/" not in name and name not in (b".", b".."):
            names[raw] = None
    return list(names)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
