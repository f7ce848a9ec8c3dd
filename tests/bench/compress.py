"""What `compress=auto` gains and costs: space, cold and cached files/s, processor time, by kind of content.

Each kind is read twice through a mount with compress=off and one with auto: cold (SeaweedFS and all on this
machine) and from the cache, each file opened, read to its end and closed. The processor time is that of gpufs
alone. The first table is what becomes of one object in the fetch process, and at an open.
"""

from __future__ import annotations

import json
import os
import random
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpufs.cache.compression import Compression
from gpufs.cache.entry import charge_of
from tests.bench.lab import daemon_cpu, microseconds, prepared, table
from tests.servers import BUCKET, S3Endpoint, weed_server

FILES = 1000
SIZE = 62_000
READERS = 8
ROUNDS = 2

_letters = "etaoinshrdlcumwfgypbvk"


class Words:
    """A made-up language: 8,000 words, used as often as words are (Zipf)."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._words = [
            "".join(self._random.choices(_letters, k=self._random.randint(2, 9))) for _ in range(8000)
        ]
        self._weights = [1 / (n + 1) for n in range(8000)]
        # Real ones are not drawn one by one: phrases come again.
        self._phrases = [self._draw(self._random.randint(2, 5)) for _ in range(3000)]

    def _draw(self, count: int) -> list[int]:
        return self._random.choices(range(8000), self._weights, k=count)

    def numbers(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += self._random.choice(self._phrases) if self._random.random() < 0.3 else self._draw(2)
        return found[:count]

    def text(self, size: int) -> bytes:
        return " ".join(self._words[n] for n in self.numbers(size // 3)).encode()[:size]

    def json_lines(self, size: int) -> bytes:
        lines: list[str] = []
        while sum(map(len, lines)) < size:
            document = {
                "id": f"{self._random.getrandbits(64):016x}",
                "url": f"https://example.org/{self._random.getrandbits(40):x}",
                "text": self.text(400).decode(),
                "score": self._random.random(),
            }
            lines.append(json.dumps(document) + "\n")
        return "".join(lines).encode()[:size]

    def tokens(self, size: int) -> bytes:
        return array("H", self.numbers(size // 2)).tobytes()


def _kinds() -> dict[str, Callable[[int], bytes]]:
    words = Words()
    return {
        "text": words.text,
        "JSON lines": words.json_lines,
        "tokens, uint16": words.tokens,
        "random (JPEG)": os.urandom,
    }


def run() -> None:
    kinds = _kinds()
    for kind, make in kinds.items():
        table([(f"{kind}, one of {SIZE:,} bytes", _alone(make(SIZE)))])
    with weed_server() as endpoint:
        endpoint.client().create_bucket(Bucket=BUCKET)
        for number, make in enumerate(kinds.values()):
            some = [make(SIZE) for _ in range(50)]
            endpoint.put(BUCKET, {f"{number}/{n:05}": some[n % 50] for n in range(FILES)})
        for number, kind in enumerate(kinds):
            for mode in ("off", "auto"):
                table([(f"{kind}, compress={mode}", _measured(endpoint, number, mode))])


def _measured(endpoint: S3Endpoint, number: int, mode: str) -> str:
    cold, warm, blocks = [], [], 0
    for _ in range(ROUNDS):
        with prepared(endpoint, compress=mode) as mounted:
            mounted.mount().crawled()
            names = [mounted.path / f"{number}/{n:05}" for n in range(FILES)]
            random.Random(1).shuffle(names)
            cold.append(_read(names, lambda: daemon_cpu(mounted)))
            blocks = mounted.count("cache_bytes")
            warm.append(_read(names, lambda: daemon_cpu(mounted)))
            mounted.umount()
    cold_rate, warm_rate = (max(rate for rate, _ in each) for each in (cold, warm))
    return (
        f"{FILES * charge_of(SIZE) / blocks:.2f} x the files; "
        f"cold {cold_rate:,.0f} files/s, {min(c for _, c in cold):,.0f} us each; "
        f"cached {warm_rate:,.0f} files/s, {min(c for _, c in warm):,.0f} us each"
    )


def _read(names: list[Path], processor: Callable[[], float]) -> tuple[float, float]:
    """Files/s, and microseconds of processor time for each."""
    before, begin = processor(), time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        assert set(pool.map(lambda path: len(path.read_bytes()), names)) == {SIZE}
    seconds = time.perf_counter() - begin
    return len(names) / seconds, (processor() - before) / len(names) * 1e6


def _alone(data: bytes) -> str:
    compression, digest, view = Compression(), bytes(16), memoryview(data)
    sample = microseconds(lambda: compression.promises(view), 200)
    if not compression.promises(view):
        return f"sample {sample:.0f} us: not compressed"
    packed = compression.pack(digest, view)
    whole = microseconds(lambda: compression.pack(digest, view), 50)
    if packed is None:
        return f"sample {sample:.0f} us, compressing {whole:.0f} us: saves too little"
    expanding = microseconds(lambda: compression.unpack(digest, len(data), packed), 50)
    return (
        f"sample {sample:.0f} us, compressing {whole:.0f} us to 1/{len(data) / len(packed):.2f}, "
        f"expanding {expanding:.0f} us"
    )
