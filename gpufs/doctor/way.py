"""The way to a source: endpoint, TLS, region, clock and credentials of those behind HTTP; who asks of NFS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from gpufs.errors import AccessDenied, GpufsError, UsageError
from gpufs.redaction import redacted
from gpufs.source import OnTheWeb, Source
from gpufs.source.retry import Transient
from gpufs.source.web import Answer, Web

from .finding import Finding, fail, ok, warn

_PATIENCE = 5.0  # seconds
SKEW = 60.0  # seconds of which the administrator should know
REFUSED_SKEW = 15 * 60.0  # seconds from which S3 refuses signatures, and others too
_SOON = 3600.0  # seconds


def check_way(source: Source, region: str | None) -> Iterator[Finding]:
    """`region` is the one that was chosen, if any was. The checks end with the first that fails."""
    if not isinstance(source, OnTheWeb):
        return
    try:
        url, ca_bundle = source.address()
    except UsageError as error:
        yield fail("endpoint", str(error), "correct the address")
        return
    asked = time.time()
    answer = _ask(url, ca_bundle)
    yield endpoint(url, answer)
    if isinstance(answer, Exception):
        return
    yield clock(answer, asked, time.time())
    if "x-amz-bucket-region" in answer.headers or region is not None:
        yield bucket_region(answer, region)
    yield credentials(source, time.time())


def _ask(url: str, ca_bundle: str | None) -> Answer | Exception:
    web = Web(Path(ca_bundle) if ca_bundle else None)
    try:
        return web.send("HEAD", url, {}, _PATIENCE)
    except (GpufsError, Transient) as error:
        return error
    finally:
        web.close()


def endpoint(url: str, answer: Answer | Exception) -> Finding:
    parts = urlsplit(url)
    if isinstance(answer, Exception):
        text = redacted(str(answer))
        if "TLS" in text:
            return fail("TLS", text, "name the certificates to trust: ca_bundle=FILE")
        return fail(
            "endpoint",
            text,
            "check endpoint_url, the name server, the firewall and HTTP(S)_PROXY: curl -I "
            f"{parts.scheme}://{parts.netloc}",
        )
    how = "with TLS" if parts.scheme == "https" else "without TLS"
    if answer.status >= 500 and answer.status != 501:  # 501: it does not know HEAD, but answers
        return warn("endpoint", f"{parts.netloc} answers with HTTP {answer.status}", "look at the server")
    return ok("endpoint", f"{parts.netloc} answers, {how}")


def clock(answer: Answer, asked: float, answered: float) -> Finding:
    """This host's clock and the server's, which has whole seconds."""
    try:
        theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return ok("clock", "the server does not tell the time")
    skew = asked - theirs - 1 if asked > theirs + 1 else min(answered - theirs, 0.0)
    if abs(skew) < SKEW:
        return ok("clock", f"less than {SKEW:.0f} s apart from the server's")
    text = f"{abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    remedy = "set the clock, and keep it set: timedatectl set-ntp true (or chronyd)"
    if abs(skew) > REFUSED_SKEW:
        return fail("clock", f"{text}: signed requests are refused", remedy)
    return warn("clock", text, remedy)


def bucket_region(answer: Answer, chosen: str | None) -> Finding:
    told = answer.headers.get("x-amz-bucket-region")
    if told is None:
        return ok("region", f"{chosen}; the server tells none")
    if chosen is not None and chosen != told:
        return fail(
            "region", f"the bucket is in {told}, not in {chosen}", f"set region={told}, or leave it out"
        )
    return ok("region", told)


def credentials(source: OnTheWeb, now: float) -> Finding:
    """Where they were found and until when they are good; never what they are."""
    try:
        origin = source.origin()
    except AccessDenied as error:
        return fail("credentials", str(error), "see the section on credentials of the README")
    except (GpufsError, Transient) as error:
        return fail("credentials", redacted(str(error)), "look at the provider that issues them")
    if origin is None:
        return ok("credentials", "none: requests are not signed")
    if origin.until is None:
        return ok("credentials", f"from {origin.where}, without an end that is known")
    until = datetime.fromtimestamp(origin.until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if origin.until < now:
        return fail("credentials", f"from {origin.where}, ended {until}", "renew them, or log in again")
    if origin.until < now + _SOON and "signature" in origin.where:
        return warn(
            "credentials", f"from {origin.where}, end {until}", "renew them in time; nobody else does"
        )
    return ok("credentials", f"from {origin.where}, good until {until}")
