"""Any sequence of operations, compared with a dict: the cache may forget, but never invents or mixes up."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpufs.cache import CHUNK, Partial
from gpufs.options import Policy
from tests.unit.cache.helpers import (
    bytes_on_disk,
    chunk_content,
    compressed_files,
    content,
    digest_of,
    object_files,
    open_cache,
    read_all,
    scrub,
)

LIMIT = 40 * 2**20
SMALL = st.integers(0, 7)
LARGE = st.sampled_from(["p", "q", "r"])
LARGE_SIZE = 2 * CHUNK + 5


def size_of(name: int) -> int:
    return 1 + name * 500_000


class CacheMachine(RuleBasedStateMachine):
    """Objects have one content for ever, so the model is: what was stored may be there, nothing else."""

    policy: Policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        # In memory: each restart syncs the file system, which is not what is tested here.
        self.directory = Path(tempfile.mkdtemp(prefix="gpufs-cache-model-", dir="/dev/shm"))
        self.cache, self.metrics = open_cache(self.directory, size=LIMIT, policy=self.policy)
        self.stored: set[object] = set()
        self.partials: dict[str, Partial] = {}
        self.chunks: dict[str, set[int]] = {}
        self.boot = 0

    @rule(name=SMALL, compress=st.booleans())
    def publish(self, name: int, compress: bool) -> None:
        data = content(name, size_of(name))
        fd = self.cache.publish(digest_of(name), data, "model", compress=compress)
        assert read_all(fd) == content(name, size_of(name))
        self.stored.add(name)

    @rule(name=SMALL | LARGE)
    def look_up(self, name: int | str) -> None:
        fd = self.cache.open_object(digest_of(name))
        if fd is None:
            fd = self.cache.rescue(digest_of(name))
        if fd is None and isinstance(name, int):
            fd = self.cache.expand(digest_of(name), size_of(name))
        if fd is None:
            assert not self.cache.has_object(digest_of(name))
            self.stored.discard(name)
            return
        assert name in self.stored
        expected = content(name, size_of(name)) if isinstance(name, int) else whole(name)
        assert read_all(fd) == expected

    @rule(name=LARGE, chunk=st.integers(0, 2))
    def write_chunk(self, name: str, chunk: int) -> None:
        if name not in self.partials:
            self.partials[name] = self.cache.open_partial(digest_of(name), LARGE_SIZE)
            self.chunks[name] = {c for c in range(3) if self.partials[name].has(c)}
        partial = self.partials[name]
        if partial.write(chunk, chunk_content(name, chunk, LARGE_SIZE)):
            self.chunks[name].add(chunk)
        if partial.complete:
            self.stored.add(name)

    @rule(name=LARGE)
    def close_partial(self, name: str) -> None:
        if name in self.partials:
            self.partials.pop(name).close()
            del self.chunks[name]

    @rule(name=SMALL | LARGE)
    def evict(self, name: int | str) -> None:
        self.cache.evict(digest_of(name))
        assert self.cache.open_object(digest_of(name)) is None
        assert not self.cache.has_object(digest_of(name))
        self.stored.discard(name)

    @rule(name=SMALL)
    def remove_behind_its_back(self, name: int) -> None:
        for digest, path in (object_files(self.directory) | compressed_files(self.directory)).items():
            if digest == digest_of(name):
                path.unlink()
                self.stored.discard(name)

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @precondition(lambda self: not self.partials)
    @rule(reboot=st.booleans())
    def restart(self, reboot: bool) -> None:
        self.cache.close()
        self.boot += reboot
        if reboot:
            # As if the mark had not been written.
            (self.directory / "state").unlink()
        self.cache, self.metrics = open_cache(
            self.directory, size=LIMIT, policy=self.policy, boot_id=f"boot-{self.boot}"
        )

    @rule()
    def scrub(self) -> None:
        scrub(self.cache)

    @invariant()
    def limit_holds(self) -> None:
        assert bytes_on_disk(self.directory) <= LIMIT
        assert self.cache.usage().bytes >= bytes_on_disk(self.directory)

    @invariant()
    def no_object_is_here_twice(self) -> None:
        assert not object_files(self.directory).keys() & compressed_files(self.directory).keys()

    @invariant()
    def chunks_stay_readable(self) -> None:
        for name, partial in self.partials.items():
            assert {chunk for chunk in range(3) if partial.has(chunk)} >= self.chunks[name]
            for chunk in self.chunks[name]:
                expected = chunk_content(name, chunk, LARGE_SIZE)
                assert os.pread(partial.fd, 4096, chunk * CHUNK) == expected[:4096]

    def teardown(self) -> None:
        for partial in self.partials.values():
            partial.close()
        self.cache.close()
        try:
            assert self.metrics.cache_errors.value == 0
            assert self.metrics.corrupt_entries.value == 0
        finally:
            shutil.rmtree(self.directory)


def whole(name: str) -> bytes:
    return b"".join(chunk_content(name, chunk, LARGE_SIZE) for chunk in range(3))


TestCacheModel = CacheMachine.TestCase
TestCacheModel.settings = settings(max_examples=20, stateful_step_count=30, deadline=None, database=None)


class EpochMachine(CacheMachine):
    policy = "epoch"


TestEpochModel = EpochMachine.TestCase
TestEpochModel.settings = TestCacheModel.settings
