"""kill -9 at any moment leaves a consistent index."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs.index.records import ROOT
from tests.unit.index.helpers import check_invariants, directory, fill, opened

# Many commits: full listings of changing contents, half listings, removals of whole directories.
_WRITE = """
import random, sys, time
from pathlib import Path
from gpufs.index.index import Index
from gpufs.source.base import Page
from tests.unit.index.helpers import SOURCE, at, directory, file, fill
index = Index(Path(sys.argv[1]), SOURCE)
random_ = random.Random(int(sys.argv[2]))
print("started", flush=True)
while True:
    parts = [f"d{n}" for n in range(8) if random_.random() < 0.8]
    fill(index, "", [directory("unfinished"), *map(directory, parts)])
    for part in parts:
        version = str(random_.random())
        names = sorted(random_.sample(range(500), 200))
        pages = [[file(f"{n}", version) for n in names[at : at + 50]] for at in range(0, 200, 50)]
        fill(index, part, *pages)
    with index.write() as writer:
        listing = writer.begin(at(index, "unfinished").number, time.time_ns())
        writer.add(listing, Page(b"unfinished", [file(str(random_.randrange(1000)))], [], False))
    print(index.totals().files, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_leaves_a_consistent_index(tmp_path: Path, seed: int) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [directory("unfinished")])
    for attempt in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITE, str(tmp_path), str(seed * 10 + attempt)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            # Some rounds, and then a moment of the next one that is different every time.
            for _ in range(2 + seed):
                assert writer.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(timeout=random.Random(seed).random() / 20)
            writer.kill()
        with opened(tmp_path) as index:
            check_invariants(index)
            assert index.totals().files > 0
            listed = index.listed(ROOT)
            assert listed is not None and listed.complete
            unfinished = index.lookup(ROOT, b"unfinished")
            assert unfinished is not None and index.listed(unfinished.number) is None
            for child in index.children(ROOT, None, 100):
                mark = index.listed(child.number)
                count = len(index.children(child.number, None, 1000))
                if mark is not None:
                    # Every complete listing had 200 names, and one under way may have added some.
                    assert mark.complete and count >= 200
            fill(index, "", [directory("unfinished"), directory("d0")])
            check_invariants(index)
