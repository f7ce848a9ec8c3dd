"""`gpufs warm`: its arguments, what it says, and its line of progress."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpufs.cli import main, progress
from gpufs.cli.progress import BAR, LINE_S, RATE_S, Progress
from gpufs.control.paths import Mount
from gpufs.errors import NotFound

DATA = Mount("/data", "fuse.gpufs", "s3://b", 0)
OTHER = Mount("/other", "fuse.gpufs", "s3://c", 0)
REPORT: dict[str, Any] = {
    "state": "done",
    "files": 1000,
    "bytes": 4 << 30,
    "here": 200,
    "here_bytes": 1 << 30,
    "need": 3 << 30,
    "room": 10 << 30,
    "fits": True,
    "cached": 1000,
    "cached_bytes": 4 << 30,
    "fetched": 800,
    "fetched_bytes": 3 << 30,
    "failed": 0,
    "given_up": False,
    "error": None,
    "complete": True,
}


class Daemon:
    """Answers the command's requests; `reports` one after the other."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.reports: list[dict[str, Any] | BaseException] = [REPORT]
        self.missing: set[str] = set()

    def call(self, mount: Mount, op: str, *, timeout: float, **arguments: Any) -> dict[str, Any]:
        self.sent.append((op, arguments))
        if op == "warm_start":
            return {"job": 7}
        assert arguments["job"] == 7
        if op == "warm_add":
            assert len(json.dumps(arguments)) < 60_000, "more than the daemon takes in one request"
            return {"missing": [n for n, path in enumerate(arguments["paths"]) if path in self.missing]}
        if op == "warm_progress":
            report = self.reports.pop(0)
            if isinstance(report, BaseException):
                raise report
            return report
        return {}

    def added(self) -> list[tuple[str, bool]]:
        adds = [arguments for op, arguments in self.sent if op == "warm_add"]
        return [(path, each["files"]) for each in adds for path in each["paths"]]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon()
    monkeypatch.setattr("gpufs.control.paths.all_mounts", lambda: [DATA, OTHER])
    monkeypatch.setattr("gpufs.control.client.call", made.call)
    return made


def test_all_cached_is_success(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "/data/a/../b\udcff", "/data"]) == 0
    assert daemon.added() == [("b\udcff", False), ("", False)]
    assert daemon.sent[0] == ("warm_start", {"jobs": 32, "dry_run": False})
    assert [op for op, _ in daemon.sent[-3:]] == ["warm_go", "warm_progress", "warm_stop"]
    assert capsys.readouterr() == (
        "1,000 files, 4.00 GiB; cached already: 200 files, 1.00 GiB\n"
        "to fetch: 800 files, 3.00 GiB; it fits: the cache has room for 10.00 GiB\n"
        "fetched 800 files, 3.00 GiB; everything is cached\n",
        "",
    )


@pytest.mark.parametrize(
    ("more", "out", "err"),
    [
        (
            {"failed": 3, "error": "gone"},
            "NOT cached: 10 files (3 failed, no room for 7)",
            "the first failure: gone",
        ),
        ({"failed": 10, "error": "x\n"}, "NOT cached: 10 files (10 failed)", "the first failure: x\\n"),
        (
            {"failed": 3, "given_up": True, "error": "down"},
            "NOT cached: 10 files (3 failed)",
            "given up, the source goes on failing: down",
        ),
        ({"fits": False}, "NOT cached: 10 files (no room for 10)", None),
    ],
)
def test_anything_that_is_missing_is_a_failure_and_said(
    more: dict[str, Any], out: str, err: str | None, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.reports = [REPORT | {"cached": 990, "complete": False} | more]
    assert main(["warm", "/data"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"fetched 800 files, 3.00 GiB; {out}"
    assert said.err == (f"gpufs: {err}\n" if err else "")
    assert ("DOES NOT FIT" in said.out) is not more.get("fits", True)


@pytest.mark.parametrize(("fits", "code"), [(True, 0), (False, 1)])
def test_a_dry_run_succeeds_if_it_would_fit(fits: bool, code: int, daemon: Daemon) -> None:
    daemon.reports = [REPORT | {"cached": 200, "fetched": 0, "complete": False, "fits": fits}]
    assert main(["warm", "--dry-run", "/data"]) == code
    assert daemon.sent[0][1]["dry_run"] is True


def test_an_interrupted_command_stops_the_warm_up(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.reports = [REPORT | {"state": "fetching"}, KeyboardInterrupt()]
    assert main(["warm", "/data"]) == 130
    assert daemon.sent[-1][0] == "warm_stop"
    assert "goes on from there" in capsys.readouterr().err


def test_a_warm_up_that_the_mount_has_lost_is_a_failure(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.reports = [NotFound("knows nothing of this warm-up any more")]
    assert main(["warm", "/data"]) == 1
    assert capsys.readouterr().err == "gpufs: knows nothing of this warm-up any more\n"


def test_paths_of_two_mounts_are_refused(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "/data/a", "/other/b"]) == 2
    assert "warm one mount at a time" in capsys.readouterr().err and not daemon.sent


def test_many_names_go_in_several_requests(daemon: Daemon, tmp_path: Path) -> None:
    order = tmp_path / "order"
    names = [f"d/\u00e4\u00f6 {n:06}" for n in range(5000)]
    order.write_text("".join(f"/data/{name}\n" for name in names))
    assert main(["warm", "/data", "--order-file", str(order)]) == 0
    assert daemon.added() == [("", False), *((name, True) for name in names)]


def test_the_line_of_a_name_that_is_not_there_is_told(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tmp_path / "order"
    order.write_text("/data/a\n\n/data/b\n/data/c\n")
    daemon.missing = {"b", "c"}
    assert main(["warm", "/data", "--order-file", str(order)]) == 1
    said = capsys.readouterr()
    assert said == ("", f"gpufs: {order}: no such file in the tree: line 3: /data/b (and 1 more)\n")
    assert daemon.sent[-1][0] == "warm_stop" and "warm_go" not in dict(daemon.sent)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stderr(monkeypatch: pytest.MonkeyPatch, made: io.StringIO) -> io.StringIO:
    """Not as a fixture: pytest puts its own in place when the test begins."""
    monkeypatch.setattr(progress.sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "120")
    return made


def fetching(fetched: int) -> dict[str, Any]:
    half = REPORT["bytes"] // 4
    more = {"cached": 500, "cached_bytes": half + fetched, "fetched_bytes": fetched}
    return REPORT | {"state": "fetching"} | more


def test_on_a_terminal_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    err = stderr(monkeypatch, Terminal())
    with Progress(quiet=False) as shown:
        shown.update(fetching(0), 100.0)
        shown.update(fetching(1 << 30), 104.0)
    lines = err.getvalue().split("\r")
    assert "\n" not in err.getvalue() and {len(line) for line in lines[1:-1]} == {119}
    bar = "#" * (BAR // 2) + "." * (BAR // 2)
    assert lines[2].rstrip() == (
        f"[{bar}]  50%  500 of 1,000 files, 2.00 GiB of 4.00 GiB, 256.00 MiB/s, 0:08 left"
    )
    assert lines[-2].strip() == "" and lines[-1] == "", "it is taken away at the end"


def test_the_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    err = stderr(monkeypatch, Terminal())
    with Progress(quiet=False) as shown:
        for second in range(100):
            shown.update(fetching(0 if second < 80 else (second - 80) << 20), float(second))
    assert "1.00 MiB/s" in err.getvalue().split("\r")[-3]
    assert RATE_S < 19


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    err = stderr(monkeypatch, io.StringIO())
    with Progress(quiet=False) as shown:
        for tenth in range(int(LINE_S * 25)):
            shown.update(fetching(tenth << 20), tenth / 10)
    assert len(err.getvalue().splitlines()) == 2 and "\r" not in err.getvalue()


def test_json_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    err = stderr(monkeypatch, io.StringIO())
    with Progress(quiet=True) as shown:
        shown.update(fetching(1), 1.0)
    assert err.getvalue() == ""
