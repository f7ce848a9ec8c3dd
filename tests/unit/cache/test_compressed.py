"""Objects kept compressed: their bytes come back or they are a miss, and they count as what they take."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings

from gpufs.cache import CHUNK, Cache, eviction
from gpufs.cache.checksum import content_hash
from gpufs.cache.compression import Compression
from tests.unit.cache.conftest import Launch, OpenCache
from tests.unit.cache.helpers import (
    MIB,
    bytes_on_disk,
    compressed_files,
    content,
    digest_of,
    expand,
    lookup,
    object_files,
    publish,
    publish_compressed,
    read_all,
    run_killed,
    scrub,
)

SIZE = 100_000

# Bytes of every kind: repeated ones, random ones, and one after the other.
PARTS = st.lists(
    st.tuples(st.binary(max_size=40), st.integers(0, 3000)).map(lambda part: part[0] * part[1])
    | st.tuples(st.integers(0, 2**32), st.integers(0, 40_000)).map(
        lambda part: random.Random(part[0]).randbytes(part[1])
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=PARTS.map(b"".join))
def test_any_bytes_come_back(data: bytes) -> None:
    compression, digest = Compression(), digest_of("any")
    packed = compression.pack(digest, memoryview(data))
    if packed is not None:
        assert -(-len(packed) // 4096) * 3 <= -(-len(data) // 4096) * 2, "it saves a third of the blocks"
        assert compression.unpack(digest, len(data), packed) == data


@pytest.mark.parametrize("size", [4097, 12_288, 12_289, SIZE, CHUNK - 1, CHUNK])
def test_an_object_is_here_once_and_reads_right(directory: Path, opened: OpenCache, size: int) -> None:
    """Whoever opens the directory later has it too, without wanting anything compressed himself."""
    cache, metrics = opened(directory)
    publish_compressed(cache, "a", size)
    assert lookup(cache, "a") is None, "nobody takes compressed bytes for plain ones"
    assert cache.has_object(digest_of("a")) and cache.has_compressed(digest_of("a"))
    cache.close()
    cache, later = opened(directory)
    assert expand(cache, "a", size) == content("a", size)
    assert cache.usage().bytes == bytes_on_disk(directory) < size
    assert cache.usage().objects == len(compressed_files(directory)) == 1
    assert not object_files(directory)
    assert metrics.compressed.value == 1
    assert metrics.compressed_saved.value == -(-size // 4096) * 4096 - bytes_on_disk(directory)
    assert cache.evict(digest_of("a")) > 0
    assert not cache.has_object(digest_of("a")) and bytes_on_disk(directory) == cache.usage().bytes == 0
    for counted in (metrics, later):
        assert (counted.cache_errors.value, counted.corrupt_entries.value) == (0, 0)


@pytest.mark.parametrize(
    ("data", "promises"),
    [
        (b"", False),
        (b"x" * 4096, False),  # one block is one block
        (b"x" * 4097, True),
        (os.urandom(SIZE), False),
        (b"some text " * 10_000, True),
        (os.urandom(SIZE) + b"x" * SIZE, True),
    ],
    ids=["empty", "one block", "two blocks", "random", "text", "half of it"],
)
def test_a_sample_says_what_is_worth_trying(
    directory: Path, opened: OpenCache, data: bytes, promises: bool
) -> None:
    cache, _ = opened(directory)
    assert cache.promises_compression(memoryview(data)) is promises


def test_what_saves_less_than_a_third_is_kept_plain(directory: Path, opened: OpenCache) -> None:
    """Although its sample promised more."""
    cache, metrics = opened(directory)
    data = bytes(4096) + os.urandom(8192) + bytes(8192) + os.urandom(16384) + bytes(4096)
    assert cache.promises_compression(memoryview(data))
    assert read_all(cache.publish(digest_of("a"), memoryview(data), compress=True)) == data
    assert lookup(cache, "a") == data
    assert metrics.compressed.value == 0 and not compressed_files(directory)


def of_another(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def flip(at: float) -> Callable[[Path, Path], None]:
    def work(path: Path, other: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] ^= 1
        path.write_bytes(data)

    return work


def bomb(path: Path, other: Path) -> None:
    """A frame that says of itself, truly, that it is 1 TiB."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1 << 33 >> 13)))
    head = struct.pack("<IBQ", 0xFD2FB528, 0b11100000, 1 << 40)
    path.write_bytes(path.read_bytes()[:24] + head + bytes(frame))


def longer(path: Path, other: Path) -> None:
    """A whole frame of more bytes than the object has."""
    data = content("longer", SIZE + 1)
    path.write_bytes(
        struct.pack("<16sQ", digest_of("a"), content_hash(data)) + zstandard.ZstdCompressor().compress(data)
    )


DAMAGES = {
    "empty": lambda path, other: path.write_bytes(b""),
    "no frame": lambda path, other: os.truncate(path, 24),
    "half": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "zeros": lambda path, other: path.write_bytes(bytes(path.stat().st_size)),
    "another's": of_another,
    "first bit": flip(0),
    "middle bit": flip(0.5),
    "last bit": flip(1),
    "bomb": bomb,
    "longer": longer,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_entry_is_a_counted_miss(
    directory: Path, opened: OpenCache, damage: Callable[[Path, Path], None]
) -> None:
    cache, metrics = opened(directory)
    for name in ("a", "b"):
        publish_compressed(cache, name, SIZE)
    files = compressed_files(directory)
    damage(files[digest_of("a")], files[digest_of("b")])
    assert expand(cache, "a", SIZE) is None
    assert metrics.corrupt_entries.value == 1
    assert not cache.has_object(digest_of("a"))
    assert list(compressed_files(directory)) == [digest_of("b")]
    assert cache.usage().bytes == bytes_on_disk(directory)
    assert expand(cache, "b", SIZE) == content("b", SIZE)
    publish_compressed(cache, "a", SIZE)
    assert expand(cache, "a", SIZE) == content("a", SIZE)
    assert metrics.corrupt_entries.value == 1


def test_every_single_flipped_bit_is_noticed(directory: Path, opened: OpenCache) -> None:
    compression, digest = Compression(), digest_of("a")
    data = content("a", 20_000)
    packed = compression.pack(digest, data)
    assert packed is not None
    for at in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[at // 8] ^= 1 << at % 8
        # A bit of zstd's own that means nothing may be wrong; the bytes never.
        assert compression.unpack(digest, len(data), bytes(damaged)) in (None, data)


def test_limits_count_what_is_on_the_disk(directory: Path, opened: OpenCache) -> None:
    """More objects fit than as plain ones, and the oldest make room."""
    cache, metrics = opened(directory, size=8 * MIB)
    for number in range(40):
        publish_compressed(cache, number, MIB)
    assert metrics.evictions.value == 0 and cache.usage().objects == 40
    for number in range(16):
        publish(cache, ("plain", number), MIB)
    assert metrics.evictions.value > 0 and not cache.has_object(digest_of(0))
    assert cache.usage().bytes == bytes_on_disk(directory) <= 8 * MIB
    assert metrics.cache_errors.value == 0


def test_what_does_not_fit_is_served_all_the_same(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory, size=4096)
    publish_compressed(cache, "a", SIZE)
    assert not cache.has_object(digest_of("a")) and bytes_on_disk(directory) == 0
    assert metrics.compressed.value == 0


CRASH = """
cache, _ = open_cache(directory)
publish_compressed(cache, "a", 100_000)
publish_compressed(cache, "torn", 100_000)
publish(cache, "plain", 100_000)
cache.flush()
publish_compressed(cache, "unflushed", 100_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["the same boot", "a reboot"])
@pytest.mark.parametrize("catalogue", [True, False], ids=["catalogued", "catalogue lost"])
def test_what_a_crash_leaves_is_used_when_its_checksum_matches(
    directory: Path, opened: OpenCache, boot: str, catalogue: bool
) -> None:
    """Also what was kept in the last second before a power loss: the checksum is in the file."""
    run_killed(CRASH, directory)
    torn = compressed_files(directory)[digest_of("torn")]
    os.truncate(torn, torn.stat().st_size - 10)
    if not catalogue:
        for path in (directory / "catalogue").iterdir():
            path.unlink()
    cache, metrics = opened(directory, boot_id=boot)
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory)
    for name in ("a", "unflushed"):
        assert expand(cache, name, 100_000) == content(name, 100_000)
    assert expand(cache, "torn", 100_000) is None
    assert metrics.corrupt_entries.value == 1
    assert cache.usage().bytes == bytes_on_disk(directory)
    assert cache.usage().objects == len(compressed_files(directory)) + len(object_files(directory))


def test_a_scan_removes_the_compressed_one_of_two(directory: Path, opened: OpenCache) -> None:
    """A process was killed between making the plain one and removing the compressed one."""
    cache, _ = opened(directory)
    publish_compressed(cache, "a", SIZE)
    (path,) = compressed_files(directory).values()
    left = path.read_bytes()
    publish(cache, "a", SIZE)
    assert not compressed_files(directory)
    path.write_bytes(left)
    cache.owe_scan()
    scrub(cache)
    assert lookup(cache, "a") == content("a", SIZE) and not compressed_files(directory)
    assert cache.usage().bytes == bytes_on_disk(directory)


OTHER = """
cache, _ = open_cache(directory)
print("open", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
cache.close()
"""


def test_another_process_reads_and_evicts_them(directory: Path, opened: OpenCache, launch: Launch) -> None:
    cache, _ = opened(directory)
    other = launch(OTHER, directory)
    assert other.stdout is not None and other.stdin is not None
    assert other.stdout.readline() == "open\n"

    def tell(line: str) -> None:
        assert other.stdout is not None and other.stdin is not None
        other.stdin.write(line + "\n")
        other.stdin.flush()
        assert other.stdout.readline() == "done\n"

    publish_compressed(cache, "a", SIZE)
    cache.flush()
    tell(f"assert expand(cache, 'a', {SIZE}) == content('a', {SIZE})")
    tell(f"publish(cache, 'a', {SIZE}); cache.flush()")
    assert lookup(cache, "a") == content("a", SIZE) and not cache.has_compressed(digest_of("a"))
    publish_compressed(cache, "a", SIZE)
    assert not cache.has_compressed(digest_of("a")), "the plain one stays"
    cache.flush()
    assert cache.usage().bytes == bytes_on_disk(directory)
    publish_compressed(cache, "b", SIZE)
    tell("assert cache.evict(digest_of('b')) > 0; cache.flush()")
    cache.flush()
    assert not cache.has_object(digest_of("b"))
    assert cache.usage().bytes == bytes_on_disk(directory)
    other.communicate(timeout=60)
    assert other.returncode == 0


def test_of_two_who_keep_it_at_once_one_wins(directory: Path, opened: OpenCache) -> None:
    """One plain, one compressed, each with a catalogue of its own: never both, and counted once."""
    caches = [opened(directory)[0] for _ in range(2)]
    names = range(150)

    def work(cache: Cache, keep: Callable[[Cache, object, int], None]) -> None:
        for name in names:
            barrier.wait(60)
            keep(cache, name, 20_000)

    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=work, args=(cache, keep))
        for cache, keep in zip(caches, (publish, publish_compressed), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for cache in caches:
        cache.flush()
    assert not object_files(directory).keys() & compressed_files(directory).keys()
    for name in names:
        found = lookup(caches[0], name) or expand(caches[0], name, 20_000)
        assert found == content(name, 20_000)
    assert caches[0].usage().bytes == bytes_on_disk(directory)
    assert caches[0].usage().objects == len(names)


def test_what_will_not_be_kept_is_not_compressed(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is kept is of use: newcomers are refused for a while."""
    monkeypatch.setattr(eviction, "_REFUSING_SECONDS", 60.0)
    cache, metrics = opened(directory, size=4 * MIB, policy="epoch")
    data = memoryview(b"some text " * 100_000)
    assert cache.promises_compression(data)
    for number in range(5):
        publish(cache, number, MIB)
    assert metrics.not_admitted.value > 0
    assert not cache.promises_compression(memoryview(bytes(2 * MIB)))
