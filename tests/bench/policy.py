"""Hit ratios of the eviction policy, beside least recently used, random and the best possible.

The tables come from simulated caches (policy_model.py), with the real rules; then one from a real cache,
and one from a mount. Targets: from the second epoch on within 5% of the best possible; another data set
within one epoch.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpufs.cache import Cache, Limit
from gpufs.metrics import Metrics
from tests.bench.lab import prepared, table
from tests.bench.policy_model import Cached, Epochs, LeastRecentlyUsed, Random
from tests.mounts import wait_until
from tests.servers import BUCKET, weed_server

FILES = 10_000
RATE = 500  # uses a second, where the simulation needs a time
SHARES = (0.25, 0.5, 0.65, 0.8, 0.9)
OBJECT = 4096
MOUNTED, MOUNTED_SIZE = 600, 64 << 10

Names = list[bytes]


def run() -> None:
    _random_epochs()
    _changes()
    _beside()
    _staged()
    _real_cache()
    _mount()


def _data_set(name: str, files: int) -> Names:
    choice = random.Random(name)
    return [choice.randbytes(16) for _ in range(files)]


def _epochs(names: Names, count: int, seed: int = 1) -> Iterator[Names]:
    choice = random.Random(seed)
    for _ in range(count):
        yield choice.sample(names, len(names))


def _ratio(cache: Cached, names: Names) -> float:
    return sum(map(cache.use, names)) / len(names)


def _ratios(cache: Cached, epochs: Iterator[Names]) -> list[float]:
    return [_ratio(cache, names) for names in epochs]


def _shown(ratios: list[float]) -> str:
    return " ".join(f"{100 * ratio:5.1f}" for ratio in ratios)


def _random_epochs() -> None:
    print(f"  {FILES:,} files in random order, % hits in the second to fourth epoch (the worst one)")
    print("    cached   gpufs     LRU  random    best")
    names = _data_set("a", FILES)
    for share in SHARES:
        size = int(share * FILES)
        caches: list[Cached] = [Epochs(size, rate=RATE), LeastRecentlyUsed(size), Random(size)]
        worst = [min(_ratios(cache, _epochs(names, 4))[1:]) for cache in caches]
        print(f"    {share:6.0%} " + "".join(f"{100 * ratio:8.1f}" for ratio in (*worst, share)))


def _changes() -> None:
    print("\n  % hits, epoch by epoch, half of the first data set being cached (LRU below it)")
    first, rows = _data_set("a", FILES), []
    for times in (0.2, 0.5, 1, 3):
        second = _data_set("b", int(times * FILES))
        for name, cache in _both(FILES // 2):
            before = _ratios(cache, _epochs(first, 3))
            after = _ratios(cache, _epochs(second, 3))
            back = _ratios(cache, _epochs(first, 2, 2))
            what = f"to another of {times:g} times its size, and back" if name == "gpufs" else ""
            rows.append((what, f"{_shown(before)}  |{_shown(after)}  |{_shown(back)}"))
    for name, cache in _both(FILES // 2):
        what = "always in the same order" if name == "gpufs" else ""
        rows.append((what, _shown([_ratio(cache, first) for _ in range(4)])))
    validation = _data_set("v", FILES // 10)
    for name, cache in _both(FILES // 2):
        rounds = [(_ratio(cache, epoch), _ratio(cache, validation)) for epoch in _epochs(first, 4)]
        what = "with validation after each epoch, 1/10 of its size" if name == "gpufs" else ""
        rows.append((what, "  |".join(map(_shown, map(list, rounds)))))
    table(rows)


def _both(size: int) -> list[tuple[str, Cached]]:
    return [("gpufs", Epochs(size, rate=RATE)), ("LRU", LeastRecentlyUsed(size))]


def _beside() -> None:
    print("\n  two jobs at once, % hits epoch by epoch: of the one, beside that of the other (LRU below it)")
    names, rows = _data_set("a", FILES), []
    for what, others, before in (
        ("one data set, half cached", names, 0),
        ("beside one that had half of another cached", _data_set("b", FILES), 3),
    ):
        for policy, cache in _both(FILES // 2):
            alone = _ratios(cache, _epochs(names, before))
            pairs = [
                _interleaved(cache, ours, theirs)
                for ours, theirs in zip(_epochs(names, 4, 2), _epochs(others, 4, 3), strict=True)
            ]
            shown = f"{_shown([a for a, _ in pairs])}  beside {_shown([b for _, b in pairs])}"
            rows.append((what if policy == "gpufs" else "", f"{_shown(alone)} {shown}".strip()))
    table(rows)


def _interleaved(cache: Cached, ours: Names, theirs: Names) -> tuple[float, float]:
    hits = [0, 0]
    for a, b in zip(ours, theirs, strict=True):
        hits[0] += cache.use(a)
        hits[1] += cache.use(b)
    return hits[0] / len(ours), hits[1] / len(theirs)


def _staged() -> None:
    print("\n  the order is known, and what comes next is fetched in time: % of the files, epoch by epoch")
    names, rows = _data_set("a", FILES), []
    for share in (0.25, 0.5, 0.8):
        cache = Epochs(int(share * FILES), rate=RATE)
        _ratio(cache, names)
        hits, fetched = [], []
        for epoch in _epochs(names, 3):
            cache.allowance = int(share * FILES * 0.05)
            at = 0
            staged = hit = 0
            for number, name in enumerate(epoch):
                # A little further at a time, as long as there is room for it.
                while at < min(number + 2 * RATE, len(epoch)):
                    new = not cache.holds(epoch[at])
                    if not cache.stage(epoch[at]):
                        break
                    staged += new
                    at += 1
                at = max(at, number + 1)
                hit += cache.use(name)
            hits.append(hit / FILES)
            fetched.append((staged + FILES - hit) / FILES)
        rows.append((f"{share:.0%} cached: found when it is read", _shown(hits)))
        rows.append((f"fetched (best: {1 - share:.0%})", _shown(fetched)))
    table(rows)


class _RealCache:
    """A cache of files, as a mount would use it."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def use(self, digest: bytes) -> bool:
        fd = self._cache.open_object(digest)
        if fd is None:
            os.close(self._cache.publish(digest, memoryview(digest * (OBJECT // 16))))
            return False
        os.close(fd)
        return True


def _real_cache() -> None:
    names = _data_set("a", FILES)
    directory = Path(tempfile.mkdtemp(prefix="gpufs-bench-", dir="/dev/shm"))
    metrics = Metrics()
    half = Limit(FILES * OBJECT // 2 * 100 // 99)
    cache = Cache(directory / "cache", cache_size=half, min_free=Limit(0), metrics=metrics)
    try:
        ratios = _ratios(_RealCache(cache), _epochs(names, 5))
        print(
            f"\n  a real cache in a tmpfs, half of {FILES:,} files of {OBJECT:,} bytes, % hits epoch by epoch"
        )
        evicted, passed_by = metrics.evictions.value, metrics.not_admitted.value
        table([("random order", f"{_shown(ratios)}  ({evicted:,} evictions, {passed_by:,} passed by)")])
    finally:
        cache.close()
        shutil.rmtree(directory)


def _mount() -> None:
    """Everything together: server, mount, kernel."""
    keys = [f"train/{number:05}" for number in range(MOUNTED)]
    half = MOUNTED * MOUNTED_SIZE // 2 * 100 // 99
    rows = []
    with weed_server() as endpoint:
        endpoint.client().create_bucket(Bucket=BUCKET)
        endpoint.put(BUCKET, dict.fromkeys(keys, os.urandom(MOUNTED_SIZE)))
        for policy in ("epoch", "lru"):
            with prepared(endpoint, cache_size=str(half), min_free="0", policy=policy) as mounted:
                mounted.mount().crawled()
                choice, ratios, requests = random.Random(1), [], []
                for epoch in range(1, 4):
                    hits, sent = mounted.count("hits"), mounted.count("remote_requests")
                    for key in choice.sample(keys, len(keys)):
                        (mounted.path / key).read_bytes()
                    wait_until(lambda: mounted.count("opens") >= epoch * MOUNTED, "opens to be told", 10)  # noqa: B023
                    ratios.append((mounted.count("hits") - hits) / MOUNTED)
                    requests.append(mounted.count("remote_requests") - sent)
                told = f"{_shown(ratios)}; requests sent {' '.join(map(str, requests))}"
                rows.append((f"policy={policy}", told))
    print(
        f"\n  a mount, half of {MOUNTED} files of {MOUNTED_SIZE:,} bytes, random order, % hits epoch by epoch"
    )
    table(rows)
