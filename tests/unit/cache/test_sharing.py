"""Two processes share one directory: one truth, one set of limits, one first and one last user."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.unit.cache.conftest import Launch, OpenCache
from tests.unit.cache.helpers import (
    MIB,
    bytes_on_disk,
    content,
    digest_of,
    lookup,
    open_cache,
    publish,
    run_killed,
    run_to_end,
    scrub,
)

OTHER = """
cache, metrics = open_cache(directory, size=64 * MIB)
print(cache.first, flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
cache.close()
"""


def test_each_sees_the_objects_of_the_other(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, size=64 * MIB)
    publish(cache, "mine", 1000)
    cache.flush()
    run_to_end(
        """
cache, _ = open_cache(directory)
assert not cache.first
assert lookup(cache, "mine") == content("mine", 1000)
publish(cache, "theirs", 1000)
assert cache.evict(digest_of("mine")) == 1000
cache.close()
""",
        directory,
    )
    assert lookup(cache, "theirs") == content("theirs", 1000)
    assert lookup(cache, "mine") is None
    cache.flush()
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_the_limit_holds_for_both_together(directory: Path, opened: OpenCache, launch: Launch) -> None:
    limit = 64 * MIB
    cache, metrics = opened(directory, size=limit)
    other = launch(
        """
cache, metrics = open_cache(directory, size=64 * MIB)
print("ready", flush=True)
sys.stdin.readline()
for number in range(600):
    publish(cache, ("other", number), 250_000)
print(metrics.cache_errors.value, flush=True)
cache.close()
""",
        directory,
    )
    assert other.stdout is not None and other.stdin is not None
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    worst = 0
    for number in range(600):
        publish(cache, ("mine", number), 250_000)
        if number % 20 == 0:
            worst = max(worst, disk_use(directory))
    out, _ = other.communicate(timeout=60)
    assert (other.returncode, out) == (0, "0\n")
    assert 0 < worst <= limit
    assert disk_use(directory) <= limit
    cache.flush()
    assert cache.usage().bytes == bytes_on_disk(directory)
    assert metrics.cache_errors.value == 0


def tell(other: subprocess.Popen[str], line: str) -> None:
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write(line + "\n")
    other.stdin.flush()
    assert other.stdout.readline() == "done\n"


def test_what_another_process_reads_from_goes_last(
    directory: Path, opened: OpenCache, launch: Launch
) -> None:
    """A large object that is being filled is not evicted for small ones, though it is the oldest."""
    other = launch(OTHER, directory)
    assert other.stdout is not None and other.stdout.readline() == "True\n"
    tell(other, "large = cache.open_partial(digest_of('large'), 3 * 4 * MIB)")
    tell(other, "large.write(0, memoryview(bytes(4 * MIB))); cache.flush()")
    cache, metrics = opened(directory, size=64 * MIB)
    path = directory / "partial" / digest_of("large").hex()
    for number in range(100):
        publish(cache, number, MIB)
    assert metrics.evictions.value > 30 and path.exists()
    tell(other, "large.close()")
    for number in range(100, 200):
        publish(cache, number, MIB)
    assert not path.exists()
    other.communicate(timeout=60)


def test_what_was_evicted_before_it_was_catalogued_is_not_counted(
    directory: Path, opened: OpenCache, launch: Launch
) -> None:
    cache, _ = opened(directory, size=64 * MIB)
    other = launch(OTHER, directory)
    assert other.stdout is not None and other.stdout.readline() == "False\n"
    tell(other, "publish(cache, 'theirs', MIB); publish(cache, 'more', MIB)")
    assert cache.evict(digest_of("theirs")) == MIB
    tell(other, "cache.flush()")
    assert cache.usage().bytes == bytes_on_disk(directory) == MIB
    other.communicate(timeout=60)


def disk_use(directory: Path) -> int:
    total = 0
    for path in directory.glob("objects/??/*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_only_the_last_user_marks_the_directory_clean(directory: Path, launch: Launch) -> None:
    cache, _ = open_cache(directory, size=64 * MIB)
    other = launch(OTHER, directory)
    assert other.stdout is not None
    assert other.stdout.readline() == "False\n"
    cache.close()
    assert json.loads((directory / "state").read_bytes())["clean"] is False
    other.communicate(timeout=60)
    assert other.returncode == 0
    assert json.loads((directory / "state").read_bytes())["clean"] is True


def test_of_many_starters_exactly_one_is_first_while_all_are_there(directory: Path, launch: Launch) -> None:
    others = [launch(OTHER, directory) for _ in range(6)]
    answers = []
    for other in others:
        assert other.stdout is not None
        answers.append(other.stdout.readline())
    for other in others:
        other.communicate(timeout=60)
        assert other.returncode == 0
    assert sorted(answers) == ["False\n"] * 5 + ["True\n"]
    assert json.loads((directory / "state").read_bytes())["clean"] is True


def test_what_a_killed_companion_left_is_found_by_the_next_scan(directory: Path, opened: OpenCache) -> None:
    """The survivor closes cleanly, yet the dead one's last second is missing in the catalogue."""
    cache, _ = open_cache(directory)
    run_killed(
        """
cache, _ = open_cache(directory)
publish(cache, "theirs", 5000)
os.kill(os.getpid(), signal.SIGKILL)
""",
        directory,
    )
    assert lookup(cache, "theirs") == content("theirs", 5000)
    cache.close()
    cache, _ = opened(directory)
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory) == 8192
    assert cache.evict(digest_of("theirs")) == 5000
