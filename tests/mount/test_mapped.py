"""Large files that are mapped into memory, as safetensors files are, and read here and there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpufs.cache import CHUNK
from tests.mounts import MountFactory
from tests.servers import BUCKET, Pattern, listing_server

pytestmark = pytest.mark.fuse

SIZE = 300_000_000
PROCESSES = 8
PAGES = 300  # that each process looks at

# Arguments: a file whose every 8 bytes are their own number, how many processes and how many pages. Each
# maps the file and reads its first page, where a header would be, and then others at random. Prints
# what was wrong.
READERS = """
import json, mmap, os, random, sys
from array import array
path, processes, pages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def look(seed):
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    starts = range(0, len(memory), mmap.PAGESIZE)
    for at in (0, *random.Random(seed).sample(starts, pages)):
        expected = array("Q", range(at // 8, (at + mmap.PAGESIZE) // 8)).tobytes()
        if memory[at : at + mmap.PAGESIZE] != expected[: len(memory) - at]:
            return at

children = []
for seed in range(processes):
    pid = os.fork()
    if not pid:
        wrong = look(seed)
        if wrong is not None:
            os.write(1, b"process %d: wrong bytes at %d\\n" % (seed, wrong))
        os._exit(wrong is not None)
    children.append(pid)
print(json.dumps([os.waitpid(pid, 0)[1] for pid in children]))
"""


def test_random_pages_of_a_large_file_by_8_processes(mount: MountFactory) -> None:
    """Case 19: cold, every page is right, and no part of the file comes twice: far below 1.3x its size."""
    with listing_server({b"model.safetensors": Pattern(SIZE)}) as (scripted, server):
        mounted = mount(f"s3://{BUCKET}", server)
        done = subprocess.run(
            [sys.executable, "-c", READERS, mounted.path / "model.safetensors", str(PROCESSES), str(PAGES)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.stderr, json.loads(done.stdout)) == ("", [0] * PROCESSES)
        assert scripted.counts["GET"] == -(-SIZE // CHUNK), "one for each chunk: pages of all were read"
        assert SIZE == mounted.count("remote_bytes") <= scripted.sent < 1.3 * SIZE
