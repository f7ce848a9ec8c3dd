"""The one place where failures of RPC and of NFS become gpufs errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpufs.errors import AccessDenied, NotADirectory, NotFound, RemoteFailed
from gpufs.source.retry import Transient

from . import nfs3
from .rpc import Broken, Identity, Refused

# Failures that may be none a moment later.
_PASSING = frozenset({nfs3.IO, nfs3.SERVERFAULT, nfs3.JUKEBOX})
_DENIED = frozenset({nfs3.PERM, nfs3.ACCES})
_NOT_THERE = frozenset({nfs3.NOENT, nfs3.NAMETOOLONG, nfs3.STALE, nfs3.BADHANDLE})


@contextmanager
def translated(what: str, identity: Identity) -> Iterator[None]:
    """Raise what goes wrong as an error of gpufs, or as Transient; `what` was being done, for `identity`."""
    try:
        yield
    except Broken as error:
        raise Transient(str(error), timed_out=error.silent) from error
    except nfs3.Malformed as error:
        raise Transient(str(error)) from error
    except Refused as error:
        if error.credentials:
            raise AccessDenied(f"{what}: {error}") from error
        raise RemoteFailed(f"{what}: {error}; NFS version 3 over TCP is needed") from error
    except nfs3.Failed as error:
        raise _refusal(what, error, identity) from error


def _refusal(what: str, error: nfs3.Failed, identity: Identity) -> Exception:
    if error.status in _PASSING:
        return Transient(str(error), busy=error.status == nfs3.JUKEBOX)
    message = f"{what}: {error}"
    if error.status in _DENIED:
        who = f"user {identity.uid}, group {identity.gid}"
        return AccessDenied(f"{message} (asked as {who}; see the options nfs_uid and nfs_gid)")
    if error.status == nfs3.NOTDIR:
        return NotADirectory(message)
    if error.status in _NOT_THERE:
        return NotFound(message)
    return RemoteFailed(message)
