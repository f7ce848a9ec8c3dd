"""`gpufs warm`: what it fetches, what it leaves alone, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import GPUFS, Mounted, MountFactory, wait_until
from tests.servers import BUCKET, Fault, FaultProxy, Pattern, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20
LARGE = 2 * CHUNK + 5
Proxy = Callable[[S3Endpoint], FaultProxy]


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def end(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    last = lines(done)[-1]
    assert last["event"] == "end" and last["state"] == "done"
    return last


def small_files(count: int, size: int = 1000) -> dict[bytes, bytes]:
    return {b"train/d%d/%04d" % (n % 7, n): b"%08d" % n * (size // 8) for n in range(count)}


def test_everything_below_a_path_is_then_read_without_a_request(
    mount: MountFactory, tree_of: Callable[[Path], dict[str, bytes]]
) -> None:
    """And what was here already, be it a chunk of a large file, is not fetched again."""
    small = small_files(150)
    objects = small | {b"train/large": Pattern(LARGE), b"train/empty": b"", b"other": b"other"}
    with listing_server(objects) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        train = mounted.path / "train"
        first = os.fsdecode(next(iter(small)))
        assert (mounted.path / first).read_bytes() == small[os.fsencode(first)]
        with (train / "large").open("rb", buffering=0) as file:
            assert file.read(1) == b"\0"
        assert server.counts["GET"] == 2

        done = mounted.command("warm", str(train))
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        plan, here, last = done.stdout.splitlines()
        assert plan.startswith("152 files, ") and "cached already: 2 files" in plan
        assert here.startswith("to fetch: 150 files, ") and "it fits" in here
        assert last.startswith("fetched 150 files, ") and last.endswith("everything is cached")
        assert mounted.count("remote_bytes") == sum(map(len, small.values())) + LARGE, "each byte once"
        asked = server.counts["GET"]  # while somebody reads, a chunk is asked for in pieces
        assert mounted.count("prefetched") == len(small) - 1 + 1
        assert mounted.status()["warming"] == []

        again = mounted.command("warm", str(train), str(train / "d1"))
        assert (again.returncode, again.stderr) == (0, "")
        assert again.stdout.rstrip().endswith(": all cached already")
        expected = {os.fsdecode(key)[6:]: body for key, body in small.items()}
        expected |= {"large": Pattern(LARGE).read(0, LARGE), "empty": b""}
        assert tree_of(train) == expected
        assert server.counts["GET"] == asked, "reading it asked for nothing"
        assert mounted.count("evictions") == 0
        assert (mounted.path / "other").read_bytes() == b"other"
        assert server.counts["GET"] == asked + 1, "only what was named is fetched"


def test_an_interrupted_run_is_continued_by_the_next(mount: MountFactory, proxy: Proxy) -> None:
    """Ctrl-C stops the fetching; nothing is fetched twice. `gpufs status` shows it at work."""
    objects = small_files(200) | {b"train/large": Pattern(LARGE)}
    with listing_server(objects) as (_, endpoint):
        front = proxy(endpoint)
        mounted = mount(f"s3://{BUCKET}", endpoint, endpoint_url=front.url).crawled()
        front.add(Fault("delay", kind="GET", seconds=0.1))
        command = [*GPUFS, "warm", str(mounted.path), "--jobs", "4"]
        with subprocess.Popen(
            command, env=mounted.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            wait_until(lambda: front.counts()["GET"] >= 70, "some to be fetched")
            (shown,) = mounted.status()["warming"]
            assert (shown["paths"], shown["state"], shown["files"]) == ([""], "fetching", 201)
            assert "warming everything: " in mounted.command("status", str(mounted.path)).stdout
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=30)
        assert running.returncode == 130
        assert "the same command goes on from there" in said
        wait_until(lambda: mounted.status()["warming"] == [], "the warm-up to end")
        assert front.counts()["GET"] < 150, "it was stopped"
        front.clear()
        done = mounted.command("warm", str(mounted.path), "--json")
        assert done.returncode == 0, done.stderr
        report = end(done)
        assert 50 < report["fetched"] < 150 and report["cached"] == report["files"] == 201
        asked = Counter((seen.target, seen.headers.get("range")) for seen in front.seen("GET"))
        assert len(asked) == 200 + 3 and set(asked.values()) == {1}


def test_what_does_not_fit_is_said_and_left_out(mount: MountFactory) -> None:
    size = 400_000
    objects = small_files(40, size) | {b"train/large": Pattern(3 * CHUNK)}
    with listing_server(objects) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint, cache_size="10M")
        dry = mounted.command("warm", str(mounted.path), "--dry-run")
        assert (dry.returncode, dry.stderr) == (1, "")
        assert "it DOES NOT FIT: the cache has room for 9." in dry.stdout
        assert server.counts["GET"] == 0
        done = mounted.command("warm", str(mounted.path))
        assert (done.returncode, done.stderr) == (1, "")
        assert "it DOES NOT FIT" in done.stdout and "(no room for " in done.stdout
        status = mounted.status()
        assert status["evictions"] == 0
        assert status["cache_objects"] == server.counts["GET"] == status["prefetched"]
        assert 20 <= server.counts["GET"] < 40
        assert mounted.command("warm", str(mounted.path)).returncode == 1
        assert status["prefetched"] == mounted.count("prefetched")


def test_a_dry_run_fetches_nothing_and_programs_get_json(mount: MountFactory) -> None:
    with listing_server(small_files(30)) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        done = mounted.command("warm", str(mounted.path / "train"), "--dry-run", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert server.counts["GET"] == 0
        plan, last = lines(done)
        assert plan | {"event": "end", "state": "done"} == last
        assert (plan["files"], plan["bytes"], plan["here"], plan["fits"]) == (30, 30_000, 0, True)
        assert last["complete"] is False
        assert mounted.command("warm", str(mounted.path), "--dry-run").stdout.startswith("30 files, ")
        done = mounted.command("warm", str(mounted.path), "--json")
        assert done.returncode == 0 and {line["event"] for line in lines(done)} >= {"plan", "end"}
        assert (end(done)["fetched"], end(done)["complete"]) == (30, True)


def test_an_order_file_says_what_comes_first(mount: MountFactory, proxy: Proxy, tmp_path: Path) -> None:
    """Its paths may be relative, or lead through a link; the rest of the tree comes after them."""
    objects = small_files(40) | {b"odd/a\xff\tb": b"odd"}
    with listing_server(objects) as (_, endpoint):
        front = proxy(endpoint)
        mounted = mount(f"s3://{BUCKET}", endpoint, endpoint_url=front.url).crawled()
        (tmp_path / "link").symlink_to(mounted.path)
        order = tmp_path / "order"
        names = [b"train/d3/0038", b"odd/a\xff\tb", b"train/d2/0002", b"train/d0/0007"]
        starts = [os.fsencode(mounted.path), b"link", b"./link/.", os.fsencode(tmp_path / "link")]
        order.write_bytes(
            b"".join(start + b"/" + name + b"\n\n" for start, name in zip(starts, names, strict=True))
        )
        front.forget()
        done = subprocess.run(
            [*GPUFS, "warm", "link/train", "--order-file", "order", "--jobs", "1"],
            cwd=tmp_path,
            env=mounted.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        asked = [seen.target.partition("?")[0].partition(f"/{BUCKET}/")[2] for seen in front.seen("GET")]
        assert asked[:4] == ["train/d3/0038", "odd/a%FF%09b", "train/d2/0002", "train/d0/0007"]
        assert len(asked) == len(set(asked)) == 41


def test_what_cannot_be_warmed_is_said_before_anything_is_fetched(
    mount: MountFactory, tmp_path: Path
) -> None:
    with listing_server(small_files(10)) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        top = str(mounted.path)

        def refused(*arguments: str) -> tuple[int, str]:
            done = mounted.command("warm", *arguments)
            assert done.stdout == "" and done.stderr.startswith("gpufs: ") and done.stderr.count("\n") == 1
            return done.returncode, done.stderr

        assert refused("/etc") == (
            1,
            "gpufs: /etc is not inside a gpufs mount (gpufs status lists them)\n",
        )
        assert refused(f"{top}/train", f"{top}/nope/x", f"{top}/train/d1/y") == (
            1,
            f"gpufs: no such file or directory: {top}/nope/x (and 1 more)\n",
        )
        assert refused(top, "--jobs", "0")[0] == 2
        order = tmp_path / "order"
        assert refused(top, "--order-file", str(order))[0] == 2
        order.write_text(f"{top}/train/d1/0001\n{top}/train/d1/0002\n{top}/train/d1\n")
        assert refused(top, "--order-file", str(order)) == (
            1,
            f"gpufs: {order}: no such file in the tree: line 2: {top}/train/d1/0002 (and 1 more)\n",
        )
        order.write_text(f"{top}/train/d1/0001\n/etc/passwd\n")
        assert refused(top, "--order-file", str(order)) == (
            1,
            f"gpufs: {order}, line 2: /etc/passwd is no file on {top}\n",
        )
        assert server.counts["GET"] == 0
        assert mounted.status()["warming"] == [], "nothing is left of them"


def test_what_the_source_does_not_give_is_said_and_the_rest_is_fetched(
    mount: MountFactory, proxy: Proxy
) -> None:
    objects = small_files(50) | {b"train/large": Pattern(LARGE), b"train/large2": Pattern(LARGE)}
    with listing_server(objects) as (_, endpoint):
        front = proxy(endpoint)
        mounted: Mounted = mount(f"s3://{BUCKET}", endpoint, endpoint_url=front.url).crawled()
        for gone in ("d3/0003", "large2"):
            front.add(Fault("status", kind="GET", target=gone, status=404, code="NoSuchKey"))
        done = mounted.command("warm", str(mounted.path))
        assert done.returncode == 1
        assert "NOT cached: 2 files (2 failed)" in done.stdout
        assert done.stderr.startswith("gpufs: the first failure: ")
        front.clear()
        done = mounted.command("warm", str(mounted.path), "--json")
        assert done.returncode == 0 and end(done)["fetched"] == 2


def test_a_source_that_gives_a_warm_up_nothing_is_shown_to_fail(mount: MountFactory, proxy: Proxy) -> None:
    with listing_server(small_files(3)) as (_, endpoint):
        front = proxy(endpoint)
        mounted: Mounted = mount(f"s3://{BUCKET}", endpoint, endpoint_url=front.url).crawled()
        front.add(Fault("status", kind="GET", status=403, code="AccessDenied"))
        assert mounted.command("warm", str(mounted.path)).returncode == 1
        assert "AccessDenied" in mounted.status()["source_error"]
        front.clear()
        assert mounted.command("warm", str(mounted.path)).returncode == 0
        assert mounted.status()["source_error"] is None
