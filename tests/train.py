"""`make train`: PyTorch's DataLoader trains from a mounted bucket of real images, for two epochs.

usage: python -m tests.train IMAGES

IMAGES is a directory with PNG files (the npm package emoji-datasource-google holds some 3,800). They
are put into SeaweedFS and mounted; a DataLoader with 4 worker processes decodes every one with
Pillow. Every byte must equal the source, and the second epoch must make no remote request: neither
by gpufs's own counter nor by the server's. Each epoch's order is announced by the sampler of docs/hints.md,
as it stands there: in the first some images must have been fetched before they were read.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import xxhash
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from tests.documented import documented
from tests.servers import free_ports, weed_server

GPUFS = [sys.executable, "-m", "gpufs"]
WORKERS = 4


class Images(Dataset[tuple[str, int, int, int]]):
    """Every image of a tree, decoded: (path, hash of the file, width, sum of all pixels)."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root = root
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, item: int) -> tuple[str, int, int, int]:
        name = self.names[item]
        data = (self.root / name).read_bytes()
        with Image.open(self.root / name) as image:
            pixels = image.convert("RGBA")
            total = sum(value * count for value, count in enumerate(pixels.histogram()))
            return name, xxhash.xxh3_64_intdigest(data), pixels.width, total


def epoch(images: Images, number: int) -> tuple[float, dict[str, int]]:
    generator = torch.Generator().manual_seed(number)
    order = RandomSampler(images, generator=generator)
    sampler = documented("hints.md")["AnnouncingSampler"](order, images.names, images.root)
    loader: DataLoader[Any] = DataLoader(
        images, batch_size=32, sampler=sampler, num_workers=WORKERS, collate_fn=list
    )
    began = time.monotonic()
    hashes = {name: digest for batch in loader for name, digest, _, _ in batch}
    return time.monotonic() - began, hashes


def ranks_announce_their_shards(images: Images) -> bool:
    """With a DistributedSampler each of two ranks announces what it then reads, anew in each epoch."""
    announced: list[list[str]] = []
    sampler_class = documented("hints.md")["AnnouncingSampler"]
    with patch("gpufs.hints.announce", lambda _, paths: announced.append(list(paths))):
        for rank in (0, 1):
            shard = DistributedSampler(images, num_replicas=2, rank=rank)
            sampler = sampler_class(shard, images.names, images.root)
            for number in (1, 2):
                sampler.set_epoch(number)
                if [images.names[item] for item in sampler] != announced[-1]:
                    return False
    first, other = announced[0], announced[2]
    return announced[1] != first and {*first, *other} == {*images.names} and len(first) == len(other)


def status(mountpoint: Path) -> dict[str, Any]:
    done = subprocess.run([*GPUFS, "status", str(mountpoint), "--json"], check=True, capture_output=True)
    return dict(json.loads(done.stdout))


def server_requests(port: int) -> int:
    """Requests the S3 server itself has counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return int(sum(float(n) for n in re.findall(r"^SeaweedFS_s3_request_total\{.*\} (\S+)$", text, re.M)))


def main() -> int:
    source = Path(sys.argv[1]).resolve()
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.png"))
    random.Random(1).shuffle(names)
    if not ranks_announce_their_shards(Images(source, names)):
        print("the ranks of a distributed job do not announce what they read", file=sys.stderr)
        return 1
    expected = {name: xxhash.xxh3_64_intdigest((source / name).read_bytes()) for name in names}
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="gpufs-train-") as work, weed_server(metrics_port=port) as server:
        print(f"putting {len(names)} images into the bucket ...", flush=True)
        server.client().create_bucket(Bucket="images")
        server.put("images", {name: (source / name).read_bytes() for name in names})
        mountpoint = Path(work) / "data"
        mountpoint.mkdir()
        options = f"endpoint_url={server.url},cache_dir={work}/cache,metadata_ttl=forever"
        os.environ.update(server.env())
        subprocess.run([*GPUFS, "mount", "s3://images", str(mountpoint), "-o", options], check=True)
        failed = False
        try:
            for number in (1, 2):
                before, theirs = status(mountpoint), server_requests(port)
                seconds, hashes = epoch(Images(mountpoint, names), number)
                after = status(mountpoint)
                ours = after["remote_requests"] - before["remote_requests"]
                ahead = after["prefetched"] - before["prefetched"]
                theirs = server_requests(port) - theirs
                equal = hashes == expected
                print(
                    f"epoch {number}: {len(hashes)} images decoded in {seconds:.1f} s "
                    f"({len(hashes) / seconds:.0f}/s), bytes {'equal' if equal else 'DIFFER'}, "
                    f"remote requests: gpufs counted {ours}, the server {theirs}; {ahead} fetched ahead",
                    flush=True,
                )
                failed |= not equal
                failed |= after["orders"][0]["source"] != "announced"
                failed |= (ours > 0 or theirs > 0) if number == 2 else not ahead
        finally:
            subprocess.run([*GPUFS, "umount", str(mountpoint)], check=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
