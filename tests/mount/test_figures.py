"""The figures of real mounts: who served the opens, what was waited for, and who waited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs.metrics import GAUGES, Metrics
from gpufs.observe.figures import Figures
from tests.mounts import Mounted, MountFactory, ask, wait_until
from tests.servers import BUCKET, Pattern, listing_server
from tests.servers.distant import distant_server

pytestmark = pytest.mark.fuse

DISTANCE = 0.05
SIZE = 20_000
READER = "import sys\nfor path in sys.argv[1:]: print(len(open(path, 'rb').read()))"


def figures(mounted: Mounted) -> Figures:
    return Figures.from_json(ask(mounted, "figures"))


def read_in_a_process(paths: list[Path]) -> int:
    """The pid of a process that has read them all."""
    with subprocess.Popen([sys.executable, "-c", READER, *paths], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read().split() == [b"%d" % SIZE] * len(paths)
    return reader.pid


def test_opens_are_counted_by_who_served_them_and_waits_by_who_waited(
    mount: MountFactory, fast_path: str
) -> None:
    keys = [f"{n}/{n}" for n in range(7)]  # in directories of their own: no epoch fill
    with distant_server(keys, SIZE, DISTANCE) as distant:
        mounted = mount(f"s3://{BUCKET}", distant.endpoint)
        paths = [mounted.path / key for key in keys]
        pid = read_in_a_process(paths)
        wait_until(lambda: figures(mounted).counters["opens"] == 7, "the opens to be told of")
        cold = figures(mounted)
        assert cold.counters["hits"] == 0 and cold.counters["misses"] == 7
        assert cold.counters["remote_bytes"] == 7 * SIZE
        assert cold.times["miss_wait"].count == 7
        assert cold.times["miss_wait"].quantile(0.5) > DISTANCE / 1.42
        assert cold.times["fetch_time"].count == 7
        mine = next(process for process in cold.processes if process.pid == pid)
        assert mine.command.startswith("python") and mine.waiting == 0
        assert 7 * DISTANCE <= mine.seconds == pytest.approx(cold.times["miss_wait"].seconds, rel=0.01)
        assert cold.counters["listings"] >= 1 and cold.times["listing_wait"].count >= 1

        read_in_a_process(paths)
        wait_until(lambda: figures(mounted).counters["opens"] == 14, "the opens to be told of")
        warm = figures(mounted)
        assert warm.counters["hits"] == 7
        assert warm.times["miss_wait"] == cold.times["miss_wait"], "nobody has waited again"
        served = {name: warm.counters[f"{name}_opens"] for name in ("passthrough", "fast_path")}
        if fast_path == "off":
            assert served == {"passthrough": 0, "fast_path": 0}
        else:
            native = warm.gauges["passthrough"] == 1
            assert served == {"passthrough": 7 * native, "fast_path": 7 * (not native)}
        assert warm.counters["served_bytes"] == 14 * SIZE
        assert warm.counters["lookups"] >= 14
        assert warm.gauges["files"] == 7
        assert warm.gauges.keys() == GAUGES.keys() and warm.counters.keys() == Metrics().counters.keys()
        wait_until(lambda: figures(mounted).gauges["cache_objects"] == 7, "the cache's catalogue to be told")
        assert warm.gauges["requests_under_way"] == 0 and warm.gauges["readers_waiting"] == 0


def test_of_a_large_file_what_is_read_is_counted_and_who_waits_for_a_piece_is_known(
    mount: MountFactory,
) -> None:
    with listing_server({b"large": Pattern(20 << 20)}) as (_, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        fd = os.open(mounted.path / "large", os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            assert len(os.pread(fd, 1000, 9 << 20)) == 1000
        finally:
            os.close(fd)
        seen = figures(mounted)
        assert 1000 <= seen.counters["served_bytes"] < 1 << 20
        assert seen.times["miss_wait"].count >= 1
        assert [process.pid for process in seen.processes if process.seconds] == [os.getpid()]
