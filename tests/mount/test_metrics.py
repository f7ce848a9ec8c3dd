"""`gpufs metrics` as a user runs it: printed, into a file, and scraped; what is not mounted is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from tests.mounts import GPUFS, Mounted, MountFactory, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.parametrize("fast_path", ["auto"])]


@pytest.fixture
def mounted(mount: MountFactory, tmp_path: Path) -> Mounted:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"x" * 1000)
    made = mount(f"file://{tmp_path}/data")
    assert (made.path / "a").read_bytes() == b"x" * 1000
    wait_until(lambda: made.count("opens") == 1, "the open to be told of")
    return made


def value(text: str, name: str, mountpoint: Path) -> float:
    """Of the text format."""
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels["mountpoint"] == str(mountpoint):
                return float(sample.value)
    raise AssertionError(f"no {name} of {mountpoint}")


@contextmanager
def exporter(mounted: Mounted, *arguments: str) -> Iterator[str]:
    """Its address."""
    with subprocess.Popen(
        [*GPUFS, "metrics", *arguments, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+)/metrics\n", process.stdout.readline())
            assert said is not None
            yield said[1]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


def fetch(url: str, **headers: str) -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_figures_of_one_mount_are_printed(mounted: Mounted) -> None:
    done = mounted.command("metrics", str(mounted.path))
    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "gpufs_opens_total", mounted.path) == 1
    assert value(done.stdout, "gpufs_misses_total", mounted.path) == 1
    done = mounted.command("metrics", str(mounted.path), "--openmetrics")
    assert list(openmetrics_parser.text_string_to_metric_families(done.stdout))
    done = mounted.command("metrics", str(mounted.path.parent))
    assert done.returncode == 1 and "is not a gpufs mount" in done.stderr


def test_a_file_for_the_textfile_collector_is_replaced_in_one_step(mounted: Mounted, tmp_path: Path) -> None:
    file = tmp_path / "collector" / "gpufs.prom"
    done = mounted.command("metrics", str(mounted.path), "--output", str(file))
    assert done.returncode == 2 and "No such file or directory" in done.stderr
    file.parent.mkdir()
    file.write_text("old")
    with file.open() as old:
        assert mounted.command("metrics", str(mounted.path), "--output", str(file)).returncode == 0
        assert old.read() == "old", "another file has taken its place"
    assert value(file.read_text(), "gpufs_up", mounted.path) == 1
    assert os.listdir(file.parent) == [file.name] and file.stat().st_mode & 0o777 == 0o644


def test_a_scraper_gets_the_format_it_asks_for_and_the_figures_of_now(mounted: Mounted) -> None:
    with exporter(mounted) as address:
        kind, text = fetch(f"{address}/metrics")
        assert kind.startswith("text/plain; version=0.0.4")
        assert value(text, "gpufs_opens_total", mounted.path) == 1
        assert (mounted.path / "a").read_bytes() == b"x" * 1000
        wait_until(
            lambda: value(fetch(f"{address}/metrics")[1], "gpufs_opens_total", mounted.path) == 2,
            "the next open to be told of",
        )
        kind, text = fetch(f"{address}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert list(openmetrics_parser.text_string_to_metric_families(text))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{address}/etc/passwd")
        with pytest.raises(urllib.error.HTTPError, match="421"):
            fetch(f"{address}/metrics", Host="attacker.example")


def test_a_mount_that_hangs_is_told_and_holds_up_no_other(mount: MountFactory, mounted: Mounted) -> None:
    other = mount(mounted.source)
    with exporter(mounted) as address:
        pids = other.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            _, text = fetch(f"{address}/metrics")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert value(text, "gpufs_up", other.path) == 0
        assert value(text, "gpufs_up", mounted.path) == 1
        assert value(text, "gpufs_opens_total", mounted.path) == 1


def test_a_mount_point_that_is_not_mounted_any_more_gives_an_error_to_the_scraper(mounted: Mounted) -> None:
    with exporter(mounted, str(mounted.path)) as address:
        mounted.umount()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            fetch(f"{address}/metrics")
