"""What the source gives: whether it can be listed and read, how soon it answers, and how much it brings."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpufs.errors import AccessDenied, GpufsError, NotADirectory, NotFound, ObjectArchived, VersionGone
from gpufs.source import Kind, ObjectRef, Source

from .finding import Finding, fail, ok, warn

READERS = 16  # at once
SECONDS = 3.0
PIECE = 4 << 20  # bytes of a large object that are asked for at once
_SAMPLE = 256  # objects
_SEARCH = 3.0  # seconds
_ASKED = 5  # times
_FAR = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of reading: bytes, requests, seconds, and the first error, if there was one."""

    bytes: int
    requests: int
    seconds: float
    error: GpufsError | None


def check_supply(source: Source) -> Iterator[Finding]:
    """The checks end with the first that fails."""
    listed = listing(source)
    yield listed
    if listed.state == "FAIL":
        return
    sample = find_objects(source)
    yield throughput(read(source, sample) if sample else None)


def listing(source: Source) -> Finding:
    """Answers to the smallest question, the first of which has to connect first."""
    times: list[float] = []
    try:
        for _ in range(_ASKED):
            began = time.monotonic()
            source.check()
            times.append(time.monotonic() - began)
            if sum(times) > _SEARCH:
                break
    except GpufsError as error:
        return fail("listing", str(error), _remedy(error))
    typical = statistics.median(times[1:] or times)
    text = f"works; an answer takes {typical * 1000:.1f} ms (the first {times[0] * 1000:.0f} ms)"
    if typical > _FAR:
        return warn(
            "listing", text, "use a server or a region that is nearer, and warm the cache (gpufs warm)"
        )
    return ok("listing", text)


def _remedy(error: GpufsError) -> str:
    if isinstance(error, AccessDenied):
        return "correct the credentials, or give them the right to list"
    if isinstance(error, NotFound | NotADirectory):
        return "correct the source's name"
    return "look at the server and at the network to it"


def find_objects(source: Source) -> list[ObjectRef]:
    """Some files with bytes, breadth first, as many as a moment's search finds."""
    found: list[ObjectRef] = []
    directories: deque[bytes] = deque([b""])
    end = time.monotonic() + _SEARCH
    while directories and len(found) < _SAMPLE and time.monotonic() < end:
        directory = directories.popleft()
        try:
            for page in itertools.islice(source.list(directory), 3):
                for entry in page.entries:
                    path = directory + b"/" + entry.name if directory else entry.name
                    if entry.kind is Kind.DIRECTORY:
                        directories.append(path)
                    elif entry.kind is Kind.FILE and entry.size:
                        found.append(ObjectRef(path, entry.version, entry.size))
        except GpufsError:
            continue  # a directory that may not be listed; the root was
    return found[:_SAMPLE]


def read(source: Source, sample: list[ObjectRef], seconds: float = SECONDS) -> Brought:
    """Read pieces of these objects, many at once, again and again until the time is over."""
    pieces = itertools.cycle(
        (ref, offset) for ref in sample for offset in range(0, min(ref.size, 64 * PIECE), PIECE)
    )
    lock, began = threading.Lock(), time.monotonic()
    brought: list[int] = []
    errors: list[GpufsError] = []

    def work() -> None:
        while time.monotonic() - began < seconds and not errors:
            with lock:
                ref, offset = next(pieces)
            try:
                data = source.read(ref, offset, min(PIECE, ref.size - offset))
            except (ObjectArchived, VersionGone):
                time.sleep(0.01)  # others can be read
                continue
            except GpufsError as error:
                errors.append(error)
                return
            brought.append(len(data))

    with ThreadPoolExecutor(READERS) as pool:
        for future in [pool.submit(work) for _ in range(READERS)]:
            future.result()
    return Brought(sum(brought), len(brought), time.monotonic() - began, errors[0] if errors else None)


def throughput(found: Brought | None) -> Finding:
    if found is None:
        return ok("reading", "no file was found to read")
    if isinstance(found.error, AccessDenied):
        return fail("reading", str(found.error), "give these credentials the right to read objects too")
    if found.error is not None:
        return fail("reading", str(found.error), "look at the server")
    if not found.requests:
        return warn(
            "reading", "nothing came: all that was tried is archived, or changes", "restore the objects"
        )
    rate, size = found.bytes / found.seconds, found.bytes / found.requests
    return ok(
        "reading",
        f"{rate / 1e6:,.0f} MB/s: {found.requests / found.seconds:,.0f} requests/s of {size / 1024:,.0f} KiB "
        f"each, {READERS} at once",
    )
