"""`gpufs status`: for people and for programs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufs.cli import main
from gpufs.cli.output import size_text
from gpufs.cli.status import render
from gpufs.control import client, paths
from gpufs.control.paths import Mount

STATUS: dict[str, Any] = {
    "source": "s3://b",
    "mountpoint": "/data",
    "uptime_s": 93_784.5,
    "version": "1.0",
    "fast_path": False,
    "supervisor": 0,
    "passthrough": False,
    "files": 1_281_167,
    "directories": 1000,
    "bytes": 150 << 30,
    "opens": 1000,
    "hits": 875,
    "misses": 125,
    "remote_requests": 1234,
    "remote_bytes": 3 << 29,
    "remote_errors": 2,
    "retries": 1,
    "cache_bytes": 1 << 29,
    "cache_objects": 77,
    "cache_limit": 800 << 30,
    "evictions": 3,
    "source_error": None,
    "stale_served": 0,
    "hidden_keys": 0,
    "pids": [],
}


def test_people_see_sizes_and_the_hit_ratio() -> None:
    lines = render(STATUS).splitlines()
    assert lines[0] == "/data  s3://b"
    assert [line.split(None, 1) for line in lines[1:6]] == [
        ["up", "1 d 2 h 3 min, fast path off"],
        ["tree", "1,281,167 files in 1,000 directories, 150.00 GiB"],
        ["opens", "1,000: 875 hits, 125 misses (87.5% hits)"],
        ["remote", "1,234 requests, 1.50 GiB; 2 errors, 1 retry"],
        ["cache", "512.00 MiB of 800.00 GiB in 77 objects; 3 evictions"],
    ]
    assert len(lines) == 6


def test_what_is_on_its_way_is_told_with_what_slows_it() -> None:
    idle = {"requests": 0, "bytes": 0, "in_advance_bytes": 0, "requests_limit": 256}
    busy = {"requests": 7, "bytes": 3 << 20, "in_advance_bytes": 0, "requests_limit": 16}
    quiet = {"on_their_way": {"small": idle, "large": idle}, "bandwidth_limit": None, "throttled": 0}
    assert "traffic" not in render(STATUS | quiet)
    loud = {"on_their_way": {"small": busy, "large": idle}, "bandwidth_limit": 100 << 20, "throttled": 3}
    assert (
        "traffic 7 requests, 3.00 MiB on their way; limited to 100.00 MiB/s; "
        "the source was too busy 3 times, gets 272 at once at most" in render(STATUS | loud)
    )


def test_what_was_fetched_in_advance_is_told() -> None:
    ahead = {"prefetched": 1200, "prefetched_used": 1100, "prefetched_wasted": 20}
    text = "(87.5% hits); 1,200 fetched before they were asked for (1,100 used, 20 evicted unused)"
    assert text in render(STATUS | ahead)


def test_what_was_not_kept_is_told() -> None:
    text = "3 evictions, 4,000 passed by in favour of what is kept"
    assert text in render(STATUS | {"not_admitted": 4000})


def test_the_shared_cache_is_told_and_what_is_wrong_with_it() -> None:
    assert "shared" not in render(STATUS)
    counts = {"hits": 1200, "misses": 3, "writes": 2, "corrupt": 0, "dropped": 0, "errors": 0}
    status = {f"shared_{name}": count for name, count in counts.items()}
    status["shared_cache"] = {"url": "s3://tier/x", "small": "fine", "large": "fine"}
    assert "\n  shared  s3://tier/x: 1,200 hits, 3 misses, 2 written" in render(STATUS | status)
    status["shared_cache"] = {"url": "s3://tier/x", "small": "read_only", "large": "fine"}
    assert "4 not written; ONLY READ" in render(STATUS | status | {"shared_dropped": 4})
    status["shared_cache"] = {"url": "s3://tier/x", "small": "read_only", "large": "left_alone"}
    assert "5 failed requests; LEFT ALONE" in render(STATUS | status | {"shared_errors": 5})


def test_the_log_is_where_the_daemon_writes_it(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("wb") as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stderr=file) as daemon:
        text = render(STATUS | {"pids": [daemon.pid, daemon.pid]})
        daemon.communicate()
    assert [line.split() for line in text.splitlines()[6:]] == [["log", str(log)]]


def test_hidden_keys_are_counted_and_named() -> None:
    """Cases 3 and 4."""
    hidden = [{"key": f"exp{n}//a\n\udcff", "reason": "empty name"} for n in range(7)]
    text = render(STATUS | {"hidden_keys": 12, "hidden": hidden})
    assert "12 keys that no path can name: 'exp0//a" in text
    assert text.count("//a") == 5 and text.count("...") == 1
    assert len(text.splitlines()) == 7
    text.encode()


def test_stale_listings_are_told_when_there_are_any() -> None:
    assert "stale" not in render(STATUS)
    assert "5 listings used past their time" in render(STATUS | {"stale_served": 5})


def test_a_source_that_fails_is_told() -> None:
    assert "FAILING" not in render(STATUS)
    assert "\n  source  FAILING: s3://b: access denied" in render(
        STATUS | {"source_error": "s3://b: access denied"}
    )


def test_a_fresh_mount_has_no_ratio() -> None:
    assert "0: 0 hits, 0 misses\n" in render(STATUS | {"opens": 0, "hits": 0, "misses": 0})


@pytest.fixture
def two_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """/data answers, /dead does not."""
    mounts = [
        Mount("/", "ext4", "/dev/root", 0),
        Mount("/data", "fuse.gpufs", "s3://b", 0),
        Mount("/dead", "fuse.gpufs", "s3://c", 0),
    ]

    def call(mount: Mount, op: str, **more: object) -> dict[str, Any]:
        if mount.mountpoint != "/data":
            raise client.NobodyListens(f"no gpufs daemon answers for {mount.mountpoint}")
        return STATUS

    monkeypatch.setattr(paths, "all_mounts", lambda: mounts)
    monkeypatch.setattr(client, "call", call)


@pytest.mark.usefixtures("two_mounts")
def test_a_program_gets_what_the_daemon_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "/data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


@pytest.mark.usefixtures("two_mounts")
def test_all_mounts_are_shown_though_one_is_dead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 1
    alive, dead = json.loads(capsys.readouterr().out)
    assert alive == STATUS
    assert (dead["mountpoint"], dead["source"]) == ("/dead", "s3://c")
    assert dead["error"] == "no gpufs daemon answers for /dead"
    assert main(["status"]) == 1
    assert "/dead  s3://c\n  no gpufs daemon answers for /dead" in capsys.readouterr().out


@pytest.mark.usefixtures("two_mounts")
def test_a_dead_mount_that_was_named_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "/dead"]) == 1
    assert capsys.readouterr().err == "gpufs: no gpufs daemon answers for /dead\n"


def test_without_mounts_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "all_mounts", lambda: [])
    assert main(["status"]) == 0
    assert main(["status", "--json"]) == 0
    assert capsys.readouterr().out == "no gpufs mounts\n[]\n"


def test_one_of_a_thing_is_not_called_many() -> None:
    one = dict.fromkeys(
        "files directories opens hits misses remote_requests remote_errors retries cache_objects "
        "evictions stale_served hidden_keys".split(),
        1,
    )
    text = render(STATUS | one)
    for words in (
        "1 file in 1 directory,", "1: 1 hit, 1 miss ", "1 request,", "1 error, 1 retry",
        "1 object; 1 eviction", "1 listing used", "1 key that",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), ((1 << 20) - 1, "1,024.00 KiB"),
        (5 << 20, "5.00 MiB"), (3 << 29, "1.50 GiB"), (1 << 40, "1.00 TiB"), (3 << 60, "3,072.00 PiB"),
    ],
)  # fmt: skip
def test_sizes_have_a_unit_that_fits(amount: int, text: str) -> None:
    assert size_text(amount) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"directories": 1, "changes": 0}, "refresh /data/x: listed 1 directory, 0 changes\n"),
        ({"directories": 1200, "changes": 1}, "refresh /data/x: listed 1,200 directories, 1 change\n"),
        ({"files": 1, "bytes": 5 << 20}, "evict /data/x: dropped 1 file, 5.00 MiB\n"),
    ],
)
def test_refresh_and_evict_tell_what_they_did(
    result: dict[str, int], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "mount_of", lambda path: (Mount("/data", "fuse.gpufs", "s3://b", 0), "x"))
    monkeypatch.setattr(client, "call", lambda *_, **__: result)
    assert main([text.split()[0], "/data/x"]) == 0
    assert capsys.readouterr().out == text


def test_what_is_being_warmed_is_shown() -> None:
    warmup = {"paths": ["", "a\n"], "more_paths": 0, "files": 1000, "bytes": 1 << 30}
    warmup |= {"cached": 10, "cached_bytes": 1 << 20}
    text = render(STATUS | {"warming": [warmup, warmup | {"paths": ["b"], "more_paths": 3}]})
    numbers = "10 of 1,000 files, 1.00 MiB of 1.00 GiB cached"
    assert f"  warming everything, a\\n: {numbers}" in text
    assert f"  warming b and 3 more: {numbers}" in text
    assert "warming" not in render(STATUS | {"warming": []})
