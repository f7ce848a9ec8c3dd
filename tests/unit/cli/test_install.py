"""`gpufs install` and `uninstall`, on a helper path of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufs.cli import install, main
from gpufs.errors import MountFailed


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sbin" / "mount.gpufs"
    path.parent.mkdir()
    monkeypatch.setattr("gpufs.cli.install._HELPERS", (str(path), str(path.with_name("mount.fuse.gpufs"))))
    monkeypatch.setattr("gpufs.cli.install._script", lambda name: f"/venv/bin/{name}")
    monkeypatch.setattr("gpufs.cli.install._UNITS", tmp_path / "units")  # not there: no systemd
    return path


def test_install_and_uninstall_can_be_repeated(helper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install"]) == 0
    assert main(["install"]) == 0
    second = helper.with_name("mount.fuse.gpufs")
    assert os.readlink(helper) == os.readlink(second) == "/venv/bin/mount.gpufs"
    assert main(["uninstall"]) == 0
    assert main(["uninstall"]) == 0
    assert list(helper.parent.iterdir()) == []
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "sbin" in line] == [
        text
        for words in (
            "linked {} to /venv/bin/mount.gpufs",
            "{} links to /venv/bin/mount.gpufs already",
            "removed {}",
            "{} is not there",
        )
        for text in (words.format(helper), words.format(second))
    ]
    assert sum("no unit for systemd" in line for line in said) == len(said) - 8 == 2


def test_the_unit_runs_this_installation(
    helper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Put in place with its directory of configurations, replaced by an upgrade, and taken away."""
    units, configs = tmp_path / "units", tmp_path / "gpufs"
    units.mkdir()
    monkeypatch.setattr("gpufs.cli.install._CONFIGS", configs)
    monkeypatch.setattr("gpufs.cli.install._SYSTEMD_RUNS", tmp_path / "not running")
    unit, exporter = units / "gpufs@.service", units / "gpufs-exporter.service"
    unit.write_text("an older one")
    assert main(["install"]) == main(["install"]) == 0
    assert "ExecStart=/venv/bin/gpufs mount --foreground" in unit.read_text()
    assert "ExecStart=/venv/bin/gpufs metrics --listen 127.0.0.1:9400\n" in exporter.read_text()
    assert "/usr/local/bin" not in unit.read_text() + exporter.read_text() and configs.is_dir()
    assert main(["uninstall"]) == main(["uninstall"]) == 0
    assert not list(units.iterdir()) and configs.is_dir()
    said = capsys.readouterr().out
    assert f"wrote {unit}" in said and f"{unit} is there already" in said
    assert f"removed {unit}" in said and f"{unit} is not there" in said


def test_a_link_to_an_older_installation_is_replaced(helper: Path) -> None:
    helper.symlink_to("/gone/bin/mount.gpufs")
    assert main(["install"]) == 0
    assert os.readlink(helper) == "/venv/bin/mount.gpufs"


@pytest.mark.parametrize("command", ["install", "uninstall"])
@pytest.mark.parametrize("link", [True, False])
def test_a_foreign_file_is_left_alone(
    command: str, link: bool, helper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if link:
        helper.symlink_to("/usr/bin/other")
    else:
        helper.write_text("#!/bin/sh\n")
    assert main([command]) == 1
    assert str(helper) in capsys.readouterr().err
    assert os.path.lexists(helper) and helper.is_symlink() == link


def test_an_installation_without_the_script_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(install.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(MountFailed, match="has no mount"):
        install._script("mount.gpufs")
