"""`gpufs doctor`: whether this host and a source are fit for a mount, and with which settings."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpufs.cli.mount import absolute_source
from gpufs.cli.output import printable
from gpufs.control import paths
from gpufs.errors import UsageError
from gpufs.options import MountConfig, Options, Settings, parse_options, read_config, split_options

if TYPE_CHECKING:
    from gpufs.doctor.finding import Finding

EPILOG = """\
examples:
  gpufs doctor                                        this host
  gpufs doctor s3://my-bucket/train                   and the source: credentials, region, clock, speed
  gpufs doctor s3://data -o endpoint_url=http://10.0.0.5:9000,cache_dir=/nvme/gpufs
  gpufs doctor --config /etc/gpufs/data.toml --json

Each line begins with ok, warn or FAIL; what is not ok comes with a remedy. Nothing is changed: the
speed of the disk is measured with a file that is gone afterwards, the source is only read (for about
3 s). What is secret is not shown. Exit code: 0, or 1 when something FAILs.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this host and a source, and say which settings fit",
        description="Check what gpufs needs of this host, and of SOURCE when it is given, with the options "
        "that `gpufs mount` would be given.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="where the dataset is")
    parser.add_argument("-o", dest="options", metavar="KEY=VALUE,...", action="append", default=[])
    parser.add_argument("--config", metavar="FILE", help="TOML file with source and options; -o wins over it")
    parser.add_argument("--json", action="store_true", help="one JSON object with all findings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import logging

    from gpufs.doctor.choice import fstab_line, toml_text
    from gpufs.doctor.finding import summary

    logging.getLogger("gpufs").addHandler(logging.NullHandler())  # the findings say what went wrong
    settings: Settings = read_config(args.config) if args.config else {}
    settings.pop("mountpoint", None)
    in_file = settings.pop("source", None)
    for text in args.options:
        settings |= split_options(text)
    options, _ = parse_options(settings)
    named = in_file if args.source is None else args.source
    if named == "":  # an empty variable of a script: not the same as no source
        raise UsageError("SOURCE is empty")
    source = absolute_source(named) if named is not None else None

    found: list[Finding] = []
    for title, findings in _checks(source, options):
        shown = not args.json
        if shown:
            print(title)
        for finding in findings:
            found.append(finding)
            if shown:
                _show(finding)
    failed = any(finding.state == "FAIL" for finding in found)
    chosen = _chosen(settings, options, found)
    if args.json:
        document = {
            "source": source,
            "findings": [asdict(finding) for finding in found],
            "failed": failed,
            "settings": chosen,
        }
        print(json.dumps(document, indent=2))
        return int(failed)
    print(f"\n{summary(found)}")
    if source is not None and not failed:
        print(f"\nfor /etc/fstab (choose the mount point):\n{fstab_line(source, chosen)}")
        print(f"\nfor /etc/gpufs/NAME.toml:\n{toml_text(source, chosen)}")
    return int(failed)


def _checks(source: str | None, options: Options) -> Iterator[tuple[str, Iterator[Finding]]]:
    yield "this host", _check_host(options)
    yield f"the cache in {printable(str(options.cache_dir))}", _check_cache(options)
    if source is not None:
        yield printable(source), _check_source(source, options)


def _check_host(options: Options) -> Iterator[Finding]:
    from gpufs.doctor import host

    uid = os.geteuid()
    yield host.kernel(os.uname().release)
    yield host.device()
    yield host.fusermount(uid)
    yield host.sharing(uid, options.allow_other)
    yield host.read_size()
    yield host.open_files()
    yield host.memory()


def _check_cache(options: Options) -> Iterator[Finding]:
    from gpufs.doctor import disk
    from gpufs.doctor.passthrough import passthrough

    uid, directory = os.geteuid(), options.cache_dir
    usable = disk.usable(directory, uid)
    yield usable
    here = disk.existing(directory)
    yield disk.kind(disk.mount_at(here, paths.all_mounts()))
    space = os.statvfs(here)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    yield disk.room(options, total, free, disk.cached_bytes(directory))
    if usable.state != "FAIL":
        yield disk.speed(directory)
        yield passthrough(directory, uid)


def _check_source(source: str, options: Options) -> Iterator[Finding]:
    from gpufs.doctor.finding import fail
    from gpufs.doctor.supply import check_supply
    from gpufs.doctor.way import check_way
    from gpufs.metrics import Metrics
    from gpufs.source import open_configured

    try:
        opened = open_configured(MountConfig(source, "/", options), Metrics())
    except UsageError as error:
        yield fail("source", str(error), "gpufs mount --help and docs/sources.md tell how to write it")
        return
    with closing(opened):
        for finding in check_way(opened, options.region):
            yield finding
            if finding.state == "FAIL" and finding.check in ("endpoint", "TLS", "credentials"):
                return  # whatever comes after would only fail of the same cause
        yield from check_supply(opened)


def _chosen(settings: Settings, options: Options, found: list[Finding]) -> Settings:
    from gpufs.doctor.choice import choose, local_disks

    fit = not any(f.state != "ok" and f.check in ("cache_dir", "cache disk") for f in found)
    return choose(settings, options, fit, local_disks(paths.all_mounts()))


def _show(finding: Finding) -> None:
    from gpufs.doctor.finding import line_of

    print("\n".join(map(printable, line_of(finding, 11).split("\n"))), flush=True)
