"""The command line as a whole: exit statuses, one-line errors, help, and a light start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpufs import __version__
from gpufs.cli import main, status
from gpufs.control.paths import Mount
from gpufs.errors import NotFound

HEAVY = {"boto3", "botocore", "obstore", "trio", "pyfuse3", "lmdb", "asyncio", "logging", "ctypes", "tomllib"}


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["mount"], 2, "gpufs: mount needs SOURCE and MOUNTPOINT, as arguments or in the --config file\n"),
        (
            ["mount", "s3://b", "/none", "-o", "cache_szie=1G"],
            2,
            "gpufs: unknown option 'cache_szie'; did you mean 'cache_size'?\n",
        ),
        (
            ["mount", "s3://b", "/none"],
            1,
            "gpufs: the mount point /none does not exist; make it: mkdir -p /none\n",
        ),
        (["mount", "s3://b", __file__], 1, f"gpufs: the mount point {__file__} is not a directory\n"),
        (["mount", "s3://b", "/proc"], 1, "gpufs: /proc is a mount point already (proc of proc)\n"),
        (["umount", "/proc"], 1, "gpufs: /proc is not a gpufs mount (gpufs status lists them)\n"),
        (["status", "/proc"], 1, "gpufs: /proc is not a gpufs mount (gpufs status lists them)\n"),
        (["refresh", "/etc/x"], 1, "gpufs: /etc/x is not inside a gpufs mount (gpufs status lists them)\n"),
        (["warm", "/etc/x"], 1, "gpufs: /etc/x is not inside a gpufs mount (gpufs status lists them)\n"),
        (["evict", "/etc/x"], 1, "gpufs: /etc/x is not inside a gpufs mount (gpufs status lists them)\n"),
        (
            ["mount", "--config", "/none.toml"],
            2,
            "gpufs: cannot read the configuration file /none.toml: No such file or directory\n",
        ),
        (["doctor", ""], 2, "gpufs: SOURCE is empty\n"),
        (["umount"], 2, "gpufs: name the MOUNTPOINT, or the --config file that has it\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(
    argv: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    assert capsys.readouterr() == ("", says)


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["status", "--nope"]])
def test_wrong_arguments_are_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: gpufs" in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"gpufs {__version__}\n")


@pytest.mark.parametrize("command", ["mount", "umount", "status", "warm", "refresh", "evict", "install"])
def test_the_help_of_a_command_shows_how_it_is_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "examples:" in text or "then:" in text


def test_an_interrupted_command_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.paths, "all_mounts", interrupted)
    assert main(["status"]) == 130


def test_an_error_of_the_daemon_reaches_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*args: object, **more: object) -> None:
        raise NotFound("no such path in the tree: 'x'")

    monkeypatch.setattr("gpufs.cli.on_path.paths.mount_of", failing)
    assert main(["evict", "/data/x"]) == 1
    assert capsys.readouterr().err == "gpufs: no such path in the tree: 'x'\n"


@pytest.mark.parametrize(
    "code",
    [
        "import gpufs.cli, gpufs.cli.mount, gpufs.cli.helper",
        "import gpufs.cli; gpufs.cli.main(['status'])",
        "import gpufs.cli; gpufs.cli.main(['warm', '/etc'])",
        "import gpufs.cli\ntry: gpufs.cli.main(['mount', '--help'])\nexcept SystemExit: pass",
        "import gpufs.cli; gpufs.cli.main(['mount', 's3://b', '/none', '-o', 'region=r'])",
    ],
)
def test_commands_start_without_the_daemons_libraries(code: str) -> None:
    """The start of `gpufs mount` is part of the time to the first stat; see issue 2, point 3."""
    code += "\nimport sys; print('LOADED', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=_root())
    loaded = done.stdout.rpartition("LOADED")[2].split()
    assert "gpufs.cli.mount" in loaded, done.stderr
    assert HEAVY.intersection(loaded) == set()


def _root() -> Path:
    return Path(__file__).parents[3]


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} -m gpufs mount --help | true",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=_root(),
    )
    assert "Traceback" not in done.stderr


def test_refresh_and_evict_send_the_path_inside_the_mount(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = Mount("/data", "fuse.gpufs", "s3://b", 0)
    sent: list[tuple[object, ...]] = []

    def call(to: Mount, op: str, **arguments: object) -> dict[str, object]:
        sent.append((to, op, arguments["path"]))
        return {"files": 1234, "bytes": 5}

    monkeypatch.setattr("gpufs.control.paths.all_mounts", lambda: [mount])
    monkeypatch.setattr("gpufs.control.client.call", call)
    assert main(["evict", "/data/a/../b\udcff"]) == 0
    assert main(["refresh", "/data"]) == 0
    assert sent == [(mount, "evict", "b\udcff"), (mount, "refresh", "")]
    assert "dropped 1,234 files, 5 B" in capsys.readouterr().out
