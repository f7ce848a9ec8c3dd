"""`gpufs dashboard` on a real mount, and in a real browser where there is one (Chromium)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tests.mounts import GPUFS, Mounted, MountFactory, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.parametrize("fast_path", ["auto"])]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
).split()


@pytest.fixture
def mounted(mount: MountFactory, tmp_path: Path) -> Mounted:
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / f"{number}").write_bytes(b"x" * 1000)
    return mount(f"file://{tmp_path}/data")


@contextmanager
def dashboard(mounted: Mounted) -> Iterator[str]:
    """The address of its page, when it has something to show."""
    command = [*GPUFS, "dashboard", str(mounted.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", address)
            for number in range(20):
                (mounted.path / f"{number}").read_bytes()
            wait_until(lambda: opens(address) > 10, "the opens to be shown")
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


def opens(address: str) -> float:
    """About how many: a second that is measured may be a little longer."""
    with urllib.request.urlopen(f"{address}figures/0", timeout=30) as answer:
        return float(sum(point["opens"] for point in json.load(answer)["points"]))


def test_the_figures_of_the_mount_are_served_until_it_is_interrupted(mounted: Mounted) -> None:
    with dashboard(mounted) as address, urllib.request.urlopen(address, timeout=30) as page:
        assert b"gpufs dashboard" in page.read()


def test_a_port_that_is_taken_is_an_error(mounted: Mounted) -> None:
    with dashboard(mounted) as address:
        done = mounted.command("dashboard", str(mounted.path), "--port", address.split(":")[2].split("/")[0])
        assert done.returncode == 2 and "cannot listen on" in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the dashboard is not looked at in a browser")
@pytest.mark.parametrize("width", [1280, 360])
def test_a_browser_draws_it(mounted: Mounted, tmp_path: Path, width: int) -> None:
    """The script runs under its policy, shows the mount, and has drawn curves in more than one colour."""
    with dashboard(mounted) as address:

        def browse(*arguments: str) -> subprocess.CompletedProcess[str]:
            assert CHROMIUM is not None
            profile = f"--user-data-dir={tmp_path}/profile"
            size = f"--window-size={width},1400"
            return subprocess.run(
                [CHROMIUM, *QUIET, profile, size, "--virtual-time-budget=4000", *arguments, address],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip

        done = browse("--dump-dom", "--enable-logging=stderr")
        assert f'<h1 id="mountpoint">{mounted.path}</h1>' in done.stdout, done.stderr
        assert int(re.findall(r'data-ready="(\d+)"', done.stdout)[0]) >= 1
        assert len(re.findall(r'<svg class="plot"[^>]* aria-label="[^"]+: [^"]+"', done.stdout)) >= 12
        assert done.stdout.count("<path") >= 12 and "NaN" not in done.stdout
        assert re.search(r'<div id="trouble" [^>]*hidden=""></div>', done.stdout), "no trouble is told"
        assert not re.search(r"CONSOLE.*(Refused|Uncaught|Error)", done.stderr), done.stderr

        picture = tmp_path / "page.png"
        browse(f"--screenshot={picture}")
        with Image.open(picture) as image:
            assert image.width == width
            colours = image.convert("RGB").getcolors(1 << 24)
            assert colours is not None and len(colours) > 20
