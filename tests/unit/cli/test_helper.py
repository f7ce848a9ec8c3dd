"""mount.gpufs as mount(8) calls it."""

from __future__ import annotations

from typing import Any

import pytest

from gpufs import __version__
from gpufs.cli import helper
from gpufs.errors import MountFailed, UsageError

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls: Calls = []
    monkeypatch.setattr(helper, "mount", lambda *args, **named: calls.append((args, named)) or 0)
    return calls


@pytest.mark.parametrize(
    "argv",
    [
        ["s3://b", "/data", "-o", "rw,region=r,_netdev"],
        ["s3://b", "/data", "-n", "-o", "rw,region=r,_netdev"],
        ["-o", "rw,region=r,_netdev", "-t", "gpufs", "s3://b", "/data"],
        ["s3://b", "-o", "rw", "/data", "-o", "region=r,_netdev", "-v"],
    ],
)
def test_the_argument_orders_of_mount_are_understood(argv: list[str], mounted: Calls) -> None:
    assert helper.main(argv) == 0
    settings = {"rw": None, "region": "r", "_netdev": None}
    assert mounted == [(("s3://b", "/data", settings), {"sloppy": False})]


def test_sloppy_is_passed_on(mounted: Calls) -> None:
    assert helper.main(["s3://b", "/data", "-s", "-o", "bogus"]) == 0
    assert mounted[0][1] == {"sloppy": True}


def test_fake_checks_the_options_and_mounts_nothing(
    mounted: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert helper.main(["s3://b", "/data", "-f"]) == 0
    assert helper.main(["s3://b", "/data", "-f", "-o", "regoin=r"]) == 1
    assert "did you mean 'region'?" in capsys.readouterr().err
    assert mounted == []


@pytest.mark.parametrize("argv", [[], ["s3://b"], ["a", "b", "c"], ["a", "b", "-Z"], ["a", "b", "-N", "/x"]])
def test_wrong_usage_is_status_1(argv: list[str], mounted: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert helper.main(argv) == 1
    assert capsys.readouterr().err.startswith("gpufs: ")
    assert mounted == []


@pytest.mark.parametrize(
    ("error", "code"), [(MountFailed("x"), 32), (UsageError("x"), 1), (OSError(5, "Input/output error"), 2)]
)
def test_failures_have_the_statuses_of_mount(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **named: object) -> int:
        raise error

    monkeypatch.setattr(helper, "mount", fail)
    assert helper.main(["s3://b", "/data"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert helper.main(["-V"]) == 0
    assert capsys.readouterr().out == f"gpufs {__version__}\n"
