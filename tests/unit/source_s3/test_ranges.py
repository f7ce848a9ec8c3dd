"""A listing in ranges: whatever the keys and the order of the server and of its answers, it is one tree."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufs.source.base import Entry, Kind, Page
from gpufs.source.flat import ranges
from gpufs.source.flat.listing import Listed, Listing
from gpufs.source.flat.ranges import Range, Splitter

from .test_tree import KEYS, Tree, tree_of, walk

Order = Callable[[bytes], object]
ORDERS: list[Order] = [bytes, lambda key: key.split(b"/")]  # S3's, and that of servers that walk a real tree


class Store:
    """A server of `keys` in `order`. With `begins_anywhere` False it disregards where to begin."""

    def __init__(
        self, keys: Iterable[bytes], order: Order = bytes, page: int = 1000, begins_anywhere: bool = True
    ) -> None:
        self._keys = sorted(keys, key=order)
        self._sorted = [order(key) for key in self._keys]
        self._order = order
        self._page = page
        self._begins_anywhere = begins_anywhere
        self.requests = 0

    def answer(self, part: Range) -> Listing:
        self.requests += 1
        if part.token is not None:
            at = int(part.token)
        elif self._begins_anywhere:
            at = bisect_right(self._sorted, self._order(part.after)) if part.after else 0
        else:
            at = 0
        end = at + self._page
        objects = [Listed(key, len(key), 5, "e" + key.hex()[:8]) for key in self._keys[at:end]]
        return Listing(objects, [], str(end) if end < len(self._keys) else None)


def listed(store: Store, choose: Callable[[int], int]) -> tuple[list[list[Page]], int]:
    """The batches of a walk whose requests are answered in the order of `choose(how many are waiting)`, and
    the rounds it takes when all that are waiting are answered at once."""
    splitter = Splitter()
    waiting = [(part, store.answer(part)) for part in splitter.ranges]
    batches, rounds, left = [], 0, len(waiting)
    while waiting:
        part, listing = waiting.pop(choose(len(waiting)))
        objects = splitter.accept(part, listing)
        if part.token is not None:
            waiting.append((part, store.answer(part)))
        batches.append(splitter.pages(part, objects))
        while (behind := splitter.split()) is not None:
            waiting.append((behind, store.answer(behind)))
        left -= 1
        if not left:
            rounds, left = rounds + 1, len(waiting)
    return batches, rounds


@pytest.fixture(params=[False, True], ids=["rare", "eager"])
def cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and with a cut after every answer."""
    if request.param:
        monkeypatch.setattr(ranges, "_EARLY_ANSWERS", 1)
        monkeypatch.setattr(ranges, "_ANSWERS_PER_WASTE", 1)


NAMES = st.text("ab0/-.\U0001f680", min_size=1, max_size=12).map(str.encode)
MANY_KEYS = st.one_of(KEYS, st.sets(NAMES, max_size=150))


@pytest.mark.usefixtures("cuts")
@given(MANY_KEYS, st.integers(1, 7), st.sampled_from(ORDERS), st.integers(), st.booleans())
@example({b"a-b", b"a-b/", b"a/", b"a//", b"x" * 256}, 1, bytes, 0, False)
def test_any_partition_gives_the_tree_of_one_listing(
    keys: set[bytes], page: int, order: Order, seed: int, begins_anywhere: bool
) -> None:
    if not begins_anywhere:
        order = bytes
    choose = random.Random(seed).randrange
    batches, _ = listed(Store(keys, order, page, begins_anywhere), choose)
    one, _ = walk(sorted(keys), 1000)
    assert added_up(tree_of(p for pages in batches for p in pages)) == added_up(
        tree_of(p for pages in one for p in pages)
    )


@pytest.mark.usefixtures("cuts")
@given(MANY_KEYS, st.integers(1, 7), st.sampled_from(ORDERS), st.integers())
def test_pages_keep_the_order_of_the_protocol(keys: set[bytes], page: int, order: Order, seed: int) -> None:
    batches, _ = listed(Store(keys, order, page), random.Random(seed).randrange)
    known, closed = {b""}, Counter[bytes]()
    for pages in batches:
        for one in pages:
            assert one.directory in known, "a page came before its parent named the directory"
            assert closed[one.directory] == 0, "a page came after the last one"
            closed[one.directory] += one.last
            prefix = one.directory + b"/" if one.directory else b""
            below = [prefix + e.name for e in one.entries if e.kind is Kind.DIRECTORY]
            assert known.isdisjoint(below), "a directory was named twice"
            known.update(below)
    assert set(closed.elements()) == known


def added_up(tree: Tree) -> dict[bytes, tuple[list[Entry], Counter[tuple[bytes, str]]]]:
    """Hidden names that two ranges have counted, counted together."""
    result = {}
    for directory, (entries, hidden) in tree.items():
        counts: Counter[tuple[bytes, str]] = Counter()
        for one in hidden:
            counts[one.name, one.reason] += one.count
        result[directory] = (entries, counts)
    return result


COUNT = 300_000
RNG = random.Random(1)
SHAPES = {
    "one flat directory": [b"img_%06d.jpg" % i for i in range(COUNT)],
    "a flat directory two levels down": [b"data/train/img-%09d.jpg" % i for i in range(COUNT)],
    "1,000 classes": [
        b"n%08d/n%08d_%05d.JPEG" % (c * 14_407 % 99_999_999, c, i)
        for c in range(1000)
        for i in range(COUNT // 1000)
    ],
    "train, val and test of classes": [
        b"%s/n%08d/%05d.JPEG" % (part, c * 14_407, i)
        for part, count in ((b"test", 50), (b"train", 230), (b"val", 20))
        for c in range(1000)
        for i in range(count)
    ],
    "hex digests": [b"%032x" % RNG.getrandbits(128) for _ in range(COUNT)],
    "hex digests in directories": [b"%02x/%032x" % (RNG.randrange(256), i) for i in range(COUNT)],
    "a directory for each": [b"d%07d/x" % i for i in range(COUNT)],
    "shards": [b"laion/shard-%05d/%09d.webp" % (i // 10_000, i) for i in range(COUNT)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_listing_is_split_and_costs_few_more_requests(shape: str) -> None:
    keys = SHAPES[shape]
    store = Store(keys)
    batches, rounds = listed(store, lambda _: 0)
    assert sum(len(p.entries) for pages in batches for p in pages) >= len(keys)
    pages = len(keys) / 1000
    assert store.requests <= pages * 1.1
    assert rounds <= pages * 0.6, "of 1 / PARALLEL at best; a million keys come nearer to it"
