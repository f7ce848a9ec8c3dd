"""Every error gpufs raises, and the one table that turns an exception into an errno."""

from __future__ import annotations

import errno

from gpufs.redaction import redacted


class GpufsError(Exception):
    """Root of all errors of gpufs. The message is meant for a person: what happened, what to do.

    It may repeat a server's or a library's words, so whoever shows it gets it without secrets.
    """

    def __str__(self) -> str:
        return redacted(super().__str__())


class NotFound(GpufsError):
    """No such name, bucket, prefix or object."""


class NotADirectory(GpufsError):
    """A directory was needed and the name is something else."""


class IsADirectory(GpufsError):
    """A file was needed and the name is a directory."""


class AccessDenied(GpufsError):
    """The source refuses: wrong or expired credentials, or no permission."""


class ObjectArchived(AccessDenied):
    """The object sits in an archive tier and must be restored before it can be read."""


class VersionGone(GpufsError):
    """The version that was asked for is no longer at the source."""


class RemoteFailed(GpufsError):
    """The source failed, and went on failing until the retry budget was spent."""


class DeadlineExceeded(GpufsError):
    """The source did not answer within the deadline of the request."""


class ReadOnly(GpufsError):
    """A change was asked for."""


class NoAttribute(GpufsError):
    """No such extended attribute."""


class NotSupported(GpufsError):
    """Something the tree does not have at all, such as access control lists."""


class UsageError(GpufsError):
    """The command line, an option or a configuration file is wrong."""


class MountFailed(GpufsError):
    """The tree could not be mounted or unmounted."""


class IndexUnwritable(GpufsError):
    """The metadata index cannot be written: its disk is full or failing."""


class CacheUnusable(GpufsError):
    """The cache directory cannot be used at all (not a directory, wrong owner, unsafe mode)."""


# First match wins: subclasses stand before their base. Source: DESIGN section 10, docs/semantics.md.
_ERRNO: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, errno.ENOENT),
    (NotADirectory, errno.ENOTDIR),
    (IsADirectory, errno.EISDIR),
    (AccessDenied, errno.EACCES),
    (VersionGone, errno.ESTALE),
    (DeadlineExceeded, errno.ETIMEDOUT),
    (ReadOnly, errno.EROFS),
    (NoAttribute, errno.ENODATA),
    (NotSupported, errno.EOPNOTSUPP),
)


def errno_of(error: BaseException) -> int:
    """The errno a reader sees for `error`; EIO for whatever the table does not name."""
    for kind, number in _ERRNO:
        if isinstance(error, kind):
            return number
    return errno.EIO
