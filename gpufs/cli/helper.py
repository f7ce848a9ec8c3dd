"""mount.gpufs: what mount(8) runs for `mount -t gpufs SOURCE DIR -o ...` and for fstab lines."""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence

from gpufs import __version__
from gpufs.cli.mount import mount
from gpufs.cli.output import say
from gpufs.errors import GpufsError, MountFailed, UsageError
from gpufs.options import Settings, parse_options, split_options

_USAGE = "usage: mount.gpufs SOURCE DIR [-sfnvV] [-N NAMESPACE] [-t TYPE] [-o KEY=VALUE,...]"
# mount(8), "EXIT STATUS"
_DONE, _WRONG_USAGE, _SYSTEM_ERROR, _MOUNT_FAILED = 0, 1, 2, 32


def main(argv: Sequence[str] | None = None) -> int:
    """Mount as mount(8) asks, with its exit statuses."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except (getopt.GetoptError, UsageError) as error:
        say(str(error))
        return _WRONG_USAGE
    except GpufsError as error:
        say(str(error))
        return _MOUNT_FAILED
    except OSError as error:
        say(f"system error: {error}")
        return _SYSTEM_ERROR


def _run(argv: list[str]) -> int:
    flags, words = getopt.gnu_getopt(argv, "sfnvVhN:t:o:")
    given = {flag for flag, _ in flags}
    if "-V" in given or "-h" in given:
        print(f"gpufs {__version__}" if "-V" in given else _USAGE)
        return _DONE
    if len(words) != 2:
        raise UsageError(_USAGE)
    if "-N" in given:
        raise UsageError("another mount namespace (-N) is not supported; use nsenter(1)")
    settings: Settings = {}
    for text in (value for flag, value in flags if flag == "-o"):
        settings |= split_options(text)
    source, directory = words
    if "remount" in settings:
        raise MountFailed(
            f"the options of a gpufs mount cannot be changed; unmount {directory}, and mount it with others"
        )
    if "-v" in given:
        say(f"mounting {source} on {directory} with {settings}")
    sloppy = "-s" in given
    if "-f" in given:  # fake: everything but the mount
        parse_options(settings, sloppy=sloppy)
        return _DONE
    return mount(source, directory, settings, sloppy=sloppy)
