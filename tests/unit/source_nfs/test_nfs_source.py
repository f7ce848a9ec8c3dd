"""What servers may do by the protocol and a real one does rarely: the source copes, and loses nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gpufs.errors import AccessDenied, RemoteFailed, UsageError, VersionGone
from gpufs.metrics import Metrics
from gpufs.source import Entry, Hidden, ObjectRef, open_source
from gpufs.source.nfs import NfsSettings, NfsSource, nfs3, parse_place
from gpufs.source.retry import Retry
from tests.unit.source_nfs.fake import LOOKUP, READ, READDIRPLUS, FakeNfs, serving

Make = Callable[..., tuple[FakeNfs, NfsSource]]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make(files=...)`: the server and a source of its root."""
    with ExitStack() as stack:

        def build(deadline: float = 2, **script: object) -> tuple[FakeNfs, NfsSource]:
            fake = stack.enter_context(serving(FakeNfs(**script)))  # type: ignore[arg-type]
            metrics = Metrics()
            place = parse_place("", f"127.0.0.1:{fake.port}/")
            settings = NfsSettings(mount_port=fake.port)
            source = NfsSource(
                place, settings, Retry(metrics, deadline=deadline, sleep=lambda _: None), metrics
            )
            stack.callback(source.close)
            return fake, source

        yield build


def listed(source: NfsSource, directory: bytes = b"") -> list[Entry]:
    return sorted(entry for page in source.list(directory) for entry in page.entries)


def walked(source: NfsSource) -> list[bytes]:
    pages = [page for batch in source.walk() for page in batch]
    return sorted(page.directory + b"/" + entry.name for page in pages for entry in page.entries)


def ref(source: NfsSource, path: bytes) -> ObjectRef:
    entry = source.stat(path)
    return ObjectRef(path, entry.version, entry.size)


FILES = {b"d/%03d" % number: b"x" * number for number in range(300)} | {b"e/f/g": b"deep", b"h": b"here"}
LINKS = {b"d/l%d" % number: b"target%d" % number for number in range(100)}


@pytest.mark.parametrize(
    "script",
    [{"tells_attributes": False}, {"has_plus": False}, {"per_part": 7}, {"fragment": 11}],
    ids=lambda script: "".join(script),
)
def test_the_listing_is_the_same_however_the_server_tells_it(make: Make, script: dict[str, object]) -> None:
    """Attributes and handles are optional in the protocol, and so is READDIRPLUS."""
    _, plain = make(files=FILES, links=LINKS)
    fake, source = make(files=FILES, links=LINKS, **script)
    if not fake.has_plus:
        fake.hook = lambda procedure: nfs3.NOTSUPP if procedure == READDIRPLUS else None
    for directory in (b"", b"d", b"e/f"):
        assert listed(source, directory) == listed(plain, directory)
    assert walked(source) == walked(plain)
    assert source.stat(b"d/l7") == plain.stat(b"d/l7")
    assert (source.stat(b"d/l7").target, source.stat(b"h").size) == (b"target7", 4)


@pytest.mark.parametrize("walk", [False, True])
def test_a_listing_that_the_server_wants_begun_anew_gives_each_name_once(make: Make, walk: bool) -> None:
    """As it does when the directory changed between two parts; other names have come by then."""
    fake, source = make(files=dict(FILES), per_part=40)
    counter = itertools.count()

    def hook(procedure: int) -> int | None:
        if procedure == READDIRPLUS and next(counter) == 5:
            fake.files[b"d/000-new"] = b"new"
            return nfs3.BAD_COOKIE
        return None

    fake.hook = hook
    names = (
        [name for name in walked(source) if name.startswith(b"d/")]
        if walk
        else [b"d/" + entry.name for entry in listed(source, b"d")]
    )
    assert names == sorted(path for path in fake.files if path.startswith(b"d/"))


def test_a_directory_that_never_stays_the_same_is_an_error_in_the_end(make: Make) -> None:
    fake, source = make(files=FILES)
    fake.hook = lambda procedure: nfs3.BAD_COOKIE if procedure == READDIRPLUS else None
    with pytest.raises(RemoteFailed, match="changed while it was listed"):
        listed(source, b"d")


@pytest.mark.parametrize("per_part", [3, 1000])
def test_a_listing_without_end_is_an_error(make: Make, per_part: int) -> None:
    _, source = make(files=dict(FILES), per_part=per_part, repeats=True)
    for listing in (source.list(b""), source.walk()):
        with pytest.raises(RemoteFailed, match="comes to no end"):
            list(listing)


def test_a_walk_whose_answers_break_off_loses_no_name(make: Make) -> None:
    """A first part that came before the connection broke is not taken for one that was given."""
    fake, source = make(files=FILES, links=LINKS, deadline=10)
    whole = walked(source)
    for broken_at in range(3, 12):
        counter = itertools.count()

        def hook(procedure: int, counter: Iterator[int] = counter, at: int = broken_at) -> int | None:
            if next(counter) == at:
                raise OSError
            return None

        fake.hook = hook
        assert walked(source) == whole


def test_names_that_no_path_can_have_are_hidden(make: Make) -> None:
    fake, source = make(files={b"ok": b"x"})
    fake.names = lambda directory: [b"ok", b"a\0b", b"n" * 256]  # type: ignore[method-assign]
    pages = list(source.list(b""))
    assert [entry.name for page in pages for entry in page.entries] == [b"ok"]
    hidden = [one for page in pages for one in page.hidden]
    assert [one.name for one in hidden] == [b"a\0b", b"n" * 256] and all(
        isinstance(h, Hidden) for h in hidden
    )


BODY = random.Random(3).randbytes(300_001)


@pytest.mark.parametrize(
    "script",
    [{"gives_at_most": 10_007}, {"tells_attributes": False}, {"fragment": 1013}, {"most_read": 8192}],
    ids=lambda script: "".join(script),
)
def test_reads_are_whole_however_the_server_gives_them(make: Make, script: dict[str, object]) -> None:
    _, source = make(files={b"d/f": BODY}, **script)
    whole = ref(source, b"d/f")
    assert source.read(whole, 0, len(BODY)) == BODY
    assert source.read(whole, 70_000, 100_000) == BODY[70_000:170_000]
    assert source.read(whole, 299_000, 1001) == BODY[299_000:]


@pytest.mark.parametrize("tells", [True, False])
def test_bytes_of_a_changed_file_are_never_given(make: Make, tells: bool) -> None:
    """The change comes between the READs of one range."""
    fake, source = make(files={b"f": BODY}, tells_attributes=tells)
    whole = ref(source, b"f")
    counter = itertools.count()

    def hook(procedure: int) -> int | None:
        if procedure == READ and next(counter) == 3:
            fake.ctime += 1
        return None

    fake.hook = hook
    with pytest.raises(VersionGone):
        source.read(whole, 0, len(BODY))


def test_a_server_that_gives_no_bytes_is_an_error(make: Make) -> None:
    _, source = make(files={b"f": BODY}, gives_at_most=0)
    with pytest.raises(RemoteFailed, match="0 of 65536 bytes"):
        source.read(ref(source, b"f"), 0, 100_000)


@pytest.mark.parametrize("status", [nfs3.JUKEBOX, nfs3.IO, nfs3.SERVERFAULT])
def test_what_passes_is_repeated(make: Make, status: int) -> None:
    fake, source = make(files={b"f": BODY})
    whole = ref(source, b"f")
    failures = iter([status, status])
    fake.hook = lambda procedure: next(failures, None) if procedure == READ else None
    assert source.read(whole, 0, len(BODY)) == BODY
    fake.hook = lambda procedure: status if procedure == READ else None
    with pytest.raises(RemoteFailed, match="gave up"):
        source.read(whole, 0, len(BODY))


def test_a_refusal_says_who_asked(make: Make) -> None:
    fake, source = make(files={b"f": BODY})
    fake.hook = lambda procedure: nfs3.ACCES if procedure == LOOKUP else None
    with pytest.raises(AccessDenied, match=r"asked as user \d+, group \d+.*nfs_uid"):
        source.stat(b"f")


@pytest.mark.parametrize(
    ("url", "id", "key"),
    [
        ("nfs://Server/export", "nfs://server/export", b"/export"),
        ("nfs://server:2049/export/", "nfs://server/export", b"/export"),
        ("NFS://server:20490//a//b/./c", "nfs://server:20490/a/b/c", b"/a/b/c"),
        ("nfs://[fe80::1]:2050/x", "nfs://[fe80::1]:2050/x", b"/x"),
        ("nfs://10.0.0.1/", "nfs://10.0.0.1/", b"/"),
        ("nfs://s/a%20b?x#\u00fc", "nfs://s/a%2520b%3Fx%23%C3%BC", b"/a%20b?x#\xc3\xbc"),
    ],
)
def test_urls(url: str, id: str, key: bytes) -> None:
    """Taken byte for byte, as those of other sources."""
    source = open_source(url, None, Metrics())  # type: ignore[arg-type]
    assert (source.id, source.key(b"")) == (id, key)
    assert source.key(b"d/f") == key.rstrip(b"/") + b"/d/f"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nfs://", "no host"),
        ("nfs:///export", "no host"),
        ("nfs://server", "which of the server's directories"),
        ("nfs://server:port/x", "no host"),
        ("nfs://server:99999/x", "no host"),
        ("nfs://[::1/x", "no host"),
        ("nfs://me@server/x", "nfs_uid"),
        ("nfs://server/a/../b", r"`\.\.`"),
        ("nfs:server/x", "did you mean nfs://server/x"),
    ],
)
def test_urls_that_are_wrong(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        open_source(url, None, Metrics())  # type: ignore[arg-type]
