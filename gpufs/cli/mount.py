"""`gpufs mount`: check what can be checked, start the daemon, wait until its tree is ready."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

from gpufs import systemd
from gpufs.cli import mounts
from gpufs.cli.output import say, size_text
from gpufs.control import paths
from gpufs.errors import GpufsError, MountFailed, UsageError
from gpufs.mounting import users_may_share
from gpufs.options import MountConfig, Options, Settings, describe, parse_options, read_config, split_options

_MAX_LOG = 10 << 20  # a longer log is put aside (one generation) when the next daemon starts
_LOG_TAIL = 4096
_CHUNK = 4 << 20  # as gpufs.cache.checksum has it, which takes a mount too long to import

EPILOG = """\
examples:
  gpufs mount s3://my-bucket/imagenet /data
  gpufs mount s3://data /data -o endpoint_url=http://10.0.0.5:9000,cache_size=800GiB
  gpufs mount nfs://filer/export/datasets /data -o cache_dir=/nvme/cache,metadata_ttl=forever
  gpufs mount --config /etc/gpufs/data.toml

SOURCE is s3://bucket[/prefix], nfs://host[:port]/export[/path], file:///directory or a
directory. The tree is read-only. S3
credentials come from where the AWS tools look for them: environment, profile, SSO, instance.

options (-o KEY=VALUE,KEY=VALUE; "\\," is a comma inside a value; the same keys in the TOML file):
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "mount",
        help="show a dataset as a read-only directory",
        epilog=EPILOG + describe(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="where the dataset is")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="an existing directory")
    parser.add_argument("-o", dest="options", metavar="KEY=VALUE,...", action="append", default=[])
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same keys; -o wins over it")
    parser.add_argument(
        "--index-from", metavar="FILE", help="list of all objects to begin with (see index_from)"
    )
    parser.add_argument("--foreground", action="store_true", help="stay; the log goes to the terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        return _run(args)
    except GpufsError as error:
        if args.foreground:
            systemd.tell(os.environ, f"STATUS={error}")
        raise


def _run(args: argparse.Namespace) -> int:
    settings: Settings = read_config(args.config) if args.config else {}
    in_file = settings.pop("source", None), settings.pop("mountpoint", None)
    source, mountpoint = args.source or in_file[0], args.mountpoint or in_file[1]
    if not source or not mountpoint:
        raise UsageError("mount needs SOURCE and MOUNTPOINT, as arguments or in the --config file")
    for text in args.options:
        settings |= split_options(text)
    if args.index_from:
        settings["index_from"] = args.index_from
    return mount(source, mountpoint, settings, foreground=args.foreground)


def mount(
    source: str, mountpoint: str, settings: Settings, *, foreground: bool = False, sloppy: bool = False
) -> int:
    """Mount and return 0 when the tree is ready; raise the GpufsError that says why it is not."""
    options, notes = parse_options(settings, sloppy=sloppy)
    for note in notes:
        say(note)
    # What systemd has kept of this mount is for the supervisor to judge.
    handed = foreground and options.fast_path != "off" and systemd.hands_over(os.environ)
    with _alone_at(mountpoint):
        config = MountConfig(absolute_source(source), _free_directory(mountpoint, handed), options)
        _check_apart(config.source, config.mountpoint, str(options.cache_dir))
        _check_fuse(options.allow_other)
        _warn_of_no_room(options)
        if options.index_from:
            _fill_index(config)
        if not foreground:
            return _start_daemon(config)
    return _serve_here(config)


@contextmanager
def _alone_at(mountpoint: str) -> Iterator[None]:
    """Keep others from mounting on the same directory meanwhile: they wait, and find it taken.

    The lock is on the directory itself, and never on what is mounted there: that may hang.
    """
    known = paths.all_mounts()
    where, inside = paths.locate(mountpoint, known)
    if inside is not None or any(m.mountpoint == where for m in known) or not os.path.isdir(where):
        yield
        return
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def absolute_source(source: str) -> str:
    """A plain path made absolute, because the daemon works in `/`; an address, even a wrong one, as it is."""
    address = "://" in source or source.lower().startswith(("s3:", "file:"))
    return source if address else os.path.abspath(source)


def _free_directory(mountpoint: str, handed: bool = False) -> str:
    """The directory to mount on, absolute and without links; a dead gpufs mount on it is removed.

    One that was `handed` to this process may be mounted on it already.
    """
    known = paths.all_mounts()
    where, inside = paths.locate(mountpoint, known)
    there = next((m for m in known if m.mountpoint == where and m.fstype != "autofs"), None)
    if handed and there is not None and there.fstype == paths.FSTYPE:
        return where
    if there is not None and there.fstype == paths.FSTYPE and mounts.is_dead(there):
        mounts.detach(there, lazy=True)
        say(f"removed the dead mount of {there.source} on {where}")
        return _free_directory(mountpoint)
    if there is not None:
        hint = f"; unmount it first: gpufs umount {where}" if there.fstype == paths.FSTYPE else ""
        raise MountFailed(f"{where} is a mount point already ({there.fstype} of {there.source}){hint}")
    if inside is not None:
        raise MountFailed(f"{where} is inside the gpufs mount on {inside.mountpoint}, which is read-only")
    if not os.path.isdir(where):
        what = (
            "is not a directory" if os.path.lexists(where) else f"does not exist; make it: mkdir -p {where}"
        )
        raise MountFailed(f"the mount point {where} {what}")
    return where


def _check_apart(source: str, where: str, cache_dir: str) -> None:
    """Refuse what would make the daemon read its own mount, and wait for itself, or cache its own cache."""
    if _is_inside(cache_dir, where):
        raise MountFailed(
            f"the mount point {where} would hide cache_dir={cache_dir}; choose a directory outside of it"
        )
    if not source.startswith("/") and not source.lower().startswith("file:"):
        return
    from gpufs.source import local_directory  # costs a few milliseconds, which most mounts do not need

    root = os.path.realpath(local_directory(source) or source)
    if _is_inside(where, root):
        how = "is inside the source" if not _is_inside(root, where) else "is the source itself,"
    elif _is_inside(root, where):
        how = "contains the source"
    elif _is_inside(cache_dir, root):
        raise MountFailed(
            f"cache_dir={cache_dir} is inside the source {root}, which would grow by what is cached; "
            "choose a directory outside of it"
        )
    else:
        return
    raise MountFailed(f"the mount point {where} {how} {root}; mount on a directory apart from it")


def _is_inside(path: str, directory: str) -> bool:
    """True when `path`, which need not exist, is `directory` or below it, by whatever links and binds."""
    try:
        top = os.stat(directory)
    except OSError:
        return False
    path = os.path.realpath(path)
    while True:
        with suppress(OSError):
            if os.path.samestat(os.stat(path), top):
                return True
        if path == "/":
            return False
        path = os.path.dirname(path)


def _warn_of_no_room(options: Options) -> None:
    """Limits under which nothing, or hardly anything, is ever kept are obeyed, but nobody means them."""
    there = next(filter(os.path.exists, (options.cache_dir, *options.cache_dir.parents)), "/")
    try:
        disk = os.statvfs(there)
    except OSError:
        return  # the daemon will see
    total = disk.f_blocks * disk.f_frsize
    if options.min_free.in_bytes(total) >= total:
        say("min_free leaves the cache nothing of its disk: nothing will be kept, every open fetches anew")
        return
    room = options.cache_size.in_bytes(total)
    if room == 0:
        say("cache_size is 0: nothing will be kept, every open fetches anew")
    elif room - room // 32 < _CHUNK:  # the cache keeps a margin
        say(
            f"cache_size is {size_text(room)}, which has no room for one piece of {size_text(_CHUNK)}: "
            "only smaller files will be kept"
        )


def _check_fuse(allow_other: bool) -> None:
    if not os.path.exists("/dev/fuse"):
        raise MountFailed(
            "/dev/fuse is missing; load the module (modprobe fuse), or give it to the container "
            "(docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MountFailed("you may not open /dev/fuse; mount as root, or let users: chmod 0666 /dev/fuse")
    if allow_other and os.geteuid() != 0 and not users_may_share():
        raise MountFailed(
            "allow_other needs a line `user_allow_other` in /etc/fuse.conf (or mount as root, "
            "or leave allow_other out)"
        )


def _fill_index(config: MountConfig) -> None:
    """Have the index filled before anything is mounted."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpufs.fill"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
    )
    try:
        told, trouble = process.communicate(config.to_json().encode())
    except KeyboardInterrupt:
        _stop(process)
        raise
    if process.returncode:
        raise MountFailed(trouble.decode(errors="replace").strip() or "the index could not be filled")
    if told:
        say(told.decode(errors="replace").strip())


def _serve_here(config: MountConfig) -> int:
    from gpufs import service, supervisor
    from gpufs.logs import setup_logging

    setup_logging(config.options.log_level, config.options.log_format)
    serve = service.run if config.options.fast_path == "off" else supervisor.run
    return serve(config, lambda: say(f"{config.source} is mounted on {config.mountpoint}"))


def _start_daemon(config: MountConfig) -> int:
    """Start the daemon on its own and wait for its verdict: `ready` or `failed: why`, then EOF."""
    module = "gpufs.service" if config.options.fast_path == "off" else "gpufs.supervisor"
    log_path = paths.log_path(config.mountpoint)
    ready_r, ready_w = os.pipe()
    with _open_log(log_path) as log, os.fdopen(ready_r, "rb") as ready:
        start_of_log = log.tell()
        try:
            daemon = subprocess.Popen(
                # -P: what lies in the current directory must not be imported.
                [sys.executable, "-P", "-m", module, str(ready_w)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[ready_w],
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(ready_w)
        try:
            with suppress(BrokenPipeError), cast(IO[bytes], daemon.stdin) as stdin:
                stdin.write(config.to_json().encode())
            verdict = ready.read().decode(errors="replace").strip()
        except KeyboardInterrupt:
            _stop(daemon)
            raise
    if verdict == "ready":
        return 0
    code = daemon.wait()
    if verdict.startswith("failed: "):
        raise MountFailed(verdict.removeprefix("failed: "))
    raise MountFailed(
        f"the daemon ended before the tree was ready (exit {code}); its log {log_path} ends with:\n"
        + _tail(log_path, start_of_log)
    )


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _open_log(path: str) -> IO[bytes]:
    try:
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path) > _MAX_LOG:
            os.replace(path, path + ".1")
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o640))
    except OSError as error:
        say(f"no log is kept: {path}: {error.strerror}")
        return open(os.devnull, "ab")


def _tail(path: str, start: int) -> str:
    """The last lines of a log from byte `start` on."""
    try:
        with open(path, "rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            return log.read().decode(errors="replace").strip() or "(nothing)"
    except OSError as error:
        return f"({error.strerror})"
