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
    monkeypatch.setattr("gpufs.cli.install._script", lambda: "/venv/bin/mount.gpufs")
    return path


def test_install_and_uninstall_can_be_repeated(helper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install"]) == 0
    assert main(["install"]) == 0
    second = helper.with_name("mount.fuse.gpufs")
    assert os.readlink(helper) == os.readlink(second) == "/venv/bin/mount.gpufs"
    assert main(["uninstall"]) == 0
    assert main(["uninstall"]) == 0
    assert list(helper.parent.iterdir()) == []
    assert capsys.readouterr().out.splitlines() == [
        text
        for words in (
            "linked {} to /venv/bin/mount.gpufs",
            "{} links to /venv/bin/mount.gpufs already",
            "removed {}",
            "{} is not there",
        )
        for text in (words.format(helper), words.format(second))
    ]


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
        install._script()
