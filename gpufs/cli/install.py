"""`gpufs install` and `uninstall`: the links in /sbin for mount(8) and fstab, and the unit for systemd."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import gpufs
from gpufs.cli.output import say
from gpufs.errors import GpufsError, MountFailed

# mount(8) asks for the second name when it is given a mount point alone: the mount table has that type.
_HELPERS = ("/sbin/mount.gpufs", "/sbin/mount.fuse.gpufs")
# For each, what to say of it when it is in place.
_UNITS_SHIPPED = {
    "gpufs@.service": "a mount of its own for each {configs}/NAME.toml: systemctl enable --now gpufs@NAME",
    "gpufs-exporter.service": "figures for Prometheus: systemctl enable --now gpufs-exporter",
}
_UNITS = Path("/etc/systemd/system")
_CONFIGS = Path("/etc/gpufs")  # NAME.toml for each gpufs@NAME.service
_SYSTEMD_RUNS = Path("/run/systemd/system")  # sd_booted(3)
_SHIPPED = "/usr/local/bin/gpufs"  # the command in the unit as it is shipped


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    install = commands.add_parser(
        "install",
        help="make `mount -t gpufs`, fstab and systemd work (needs root)",
        description=f"Link {' and '.join(_HELPERS)} to this installation, and put units into {_UNITS} "
        "where there is a systemd.",
        epilog="then:\n  mount -t gpufs s3://bucket/prefix /data -o cache_size=800GiB\n"
        "or in /etc/fstab:\n  s3://bucket/prefix  /data  gpufs  _netdev,nofail,cache_size=800GiB  0 0\n"
        f"or as a service, with source, mountpoint and options in {_CONFIGS}/NAME.toml:\n"
        "  systemctl enable --now gpufs@NAME",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    install.set_defaults(run=_install)
    uninstall = commands.add_parser(
        "uninstall", help="undo `gpufs install`", description=f"{_CONFIGS} and what is in it stays."
    )
    uninstall.set_defaults(run=_uninstall)


def _install(args: argparse.Namespace) -> int:
    script = _script("mount.gpufs")
    for helper in _HELPERS:
        _link(helper, script)
    if _UNITS.is_dir():
        for unit, use in _UNITS_SHIPPED.items():
            _put_unit(_UNITS / unit, _script("gpufs"), use.format(configs=_CONFIGS))
    else:
        print(f"there is no {_UNITS}: no unit for systemd")
    return 0


def _uninstall(args: argparse.Namespace) -> int:
    for helper in _HELPERS:
        _unlink(helper)
    if _UNITS.is_dir():
        for unit in _UNITS_SHIPPED:
            _remove_unit(_UNITS / unit)
    return 0


def _script(name: str) -> str:
    """A command of this installation."""
    for directory in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        script = os.path.join(directory, name)
        if os.access(script, os.X_OK):
            return script
    raise MountFailed(f"this installation has no {name} script; install gpufs with pip first")


def _is_ours(helper: str) -> bool:
    """A link to some installation's mount.gpufs, this one's or another's, alive or not."""
    return os.path.islink(helper) and os.path.basename(os.readlink(helper)) == "mount.gpufs"


def _link(helper: str, script: str) -> None:
    if os.path.lexists(helper) and not _is_ours(helper):
        raise MountFailed(f"{helper} is there already and is not a link to gpufs; remove it first")
    if os.path.lexists(helper) and os.readlink(helper) == script:
        print(f"{helper} links to {script} already")
        return
    temporary = f"{helper}.{os.getpid()}"
    try:
        os.symlink(script, temporary)
        os.replace(temporary, helper)
    except OSError as error:
        raise _refused(helper, error) from error
    print(f"linked {helper} to {script}")


def _unlink(helper: str) -> None:
    if not os.path.lexists(helper):
        print(f"{helper} is not there")
        return
    if not _is_ours(helper):
        raise MountFailed(f"{helper} is not a link to gpufs; it stays")
    try:
        os.unlink(helper)
    except OSError as error:
        raise _refused(helper, error) from error
    print(f"removed {helper}")


def _put_unit(unit: Path, command: str, use: str) -> None:
    text = _shipped_unit(unit.name).replace(_SHIPPED, command)
    try:
        _CONFIGS.mkdir(mode=0o755, exist_ok=True)
        if _text_of(unit) == text:
            print(f"{unit} is there already")
            return
        temporary = unit.with_name(f".{unit.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o644)
        temporary.replace(unit)
    except OSError as error:
        raise _refused(str(unit), error) from error
    _reload_systemd()
    print(f"wrote {unit}; {use}")


def _remove_unit(unit: Path) -> None:
    if _text_of(unit) is None:
        print(f"{unit} is not there")
        return
    try:
        unit.unlink()
    except OSError as error:
        raise _refused(str(unit), error) from error
    _reload_systemd()
    print(f"removed {unit}; services that run go on until they are stopped")


def _shipped_unit(name: str) -> str:
    """A unit as it came with this installation: a checkout, or a wheel."""
    for directory in (Path(gpufs.__file__).parents[1], Path(sysconfig.get_path("data"), "share", "gpufs")):
        text = _text_of(directory / "systemd" / name)
        if text is not None:
            return text
    raise MountFailed(f"this installation has no {name}; install gpufs with pip first")


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _reload_systemd() -> None:
    if _SYSTEMD_RUNS.is_dir():
        done = subprocess.run(["systemctl", "daemon-reload"], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            say(f"systemd does not know of it yet: {done.stderr.strip()}; run: systemctl daemon-reload")


def _refused(helper: str, error: OSError) -> GpufsError:
    return MountFailed(f"cannot change {helper}: {error.strerror}" + ("; be root" if os.geteuid() else ""))
