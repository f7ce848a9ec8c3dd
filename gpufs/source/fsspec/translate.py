"""What the exceptions of fsspec's many libraries mean: told by name where a library may be missing."""

from __future__ import annotations

import errno

from gpufs.errors import AccessDenied, GpufsError, NotADirectory, NotFound, RemoteFailed
from gpufs.source.retry import Transient

_DENIED = frozenset(
    "AccessDenied AuthenticationException BadAuthenticationType GatedRepoError LogonFailure "
    "NoCredentialError PasswordExpired PasswordRequiredException SMBAuthenticationError SpnegoError "
    "BadHostKeyException".split()
)
# What libraries raise when a connection breaks or a server is busy, where that is no OSError.
_BROKEN = frozenset(
    "SSHException SMBException SMBConnectionClosed error_temp error_reply error_proto HTTPError "
    "ConnectionError RequestException".split()
)
_NOT_FOUND = frozenset(
    "BadNetworkName EntryNotFoundError ObjectNameNotFound ObjectPathNotFound RepositoryNotFoundError "
    "RevisionNotFoundError".split()
)
_DENIED_NUMBERS = (errno.EACCES, errno.EPERM)


def translate(error: Exception) -> Exception:
    """A GpufsError is an answer; Transient is worth repeating with another connection."""
    if isinstance(error, GpufsError | Transient):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if any(status in text for status in ("STATUS_LOGON_FAILURE", "STATUS_ACCESS_DENIED")):
        return AccessDenied(text)  # smbprotocol gives it no number of an errno
    # the number besides the class: some libraries have one class of OSError for all
    number = error.errno if isinstance(error, OSError) else None
    if names & _NOT_FOUND or isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return NotFound(text)
    if isinstance(error, NotADirectoryError) or number == errno.ENOTDIR or "0xc0000103" in text:
        return NotADirectory(text)
    if names & _DENIED or isinstance(error, PermissionError) or number in _DENIED_NUMBERS:
        return AccessDenied(text)
    if "error_perm" in names:  # FTP: 530 is the login, 550 is anything about a file
        said = str(error)
        denied = said.startswith(("530", "532")) or "denied" in said.lower()
        return AccessDenied(said) if denied else NotFound(said)
    if isinstance(error, TimeoutError):
        return Transient("the server did not answer in time", timed_out=True)
    if isinstance(error, UnicodeError):
        return RemoteFailed(f"a name that cannot be read: {error}")
    if "not found in known_hosts" in text:
        return AccessDenied(
            "the host's key is not in ~/.ssh/known_hosts of the user who mounts: connect once with ssh, and "
            "check its fingerprint"
        )
    if isinstance(error, OSError | EOFError) or names & _BROKEN:
        return Transient(text)
    return RemoteFailed(text)
