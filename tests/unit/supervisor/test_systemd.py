"""What is said to systemd, and what is taken from it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.systemd import Systemd, hands_over


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def memfds() -> Iterator[list[int]]:
    fds = [os.memfd_create("test"), os.memfd_create("test")]
    yield fds
    for fd in fds:
        os.close(fd)


def test_without_systemd_nothing_is_said(memfds: list[int]) -> None:
    systemd = Systemd({}, "id")
    assert systemd.take({}) is None and not systemd.handed_over
    systemd.store(*memfds)
    assert not systemd.notify("READY=1") and not systemd.stored


def test_an_abstract_socket_is_reached(memfds: list[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"gpufs-test-{os.getpid()}"
        sock.bind("\0" + name)
        assert Systemd({"NOTIFY_SOCKET": "@" + name}, "id").notify("READY=1", "STATUS=well")
        assert sock.recv(100) == b"READY=1\nSTATUS=well"


def test_a_manager_that_has_gone_is_no_error(tmp_path: Path) -> None:
    assert not Systemd({"NOTIFY_SOCKET": str(tmp_path / "nothing")}, "id").notify("READY=1")


@pytest.mark.parametrize("offer", [None, "0", "1", "many"])
def test_nothing_is_stored_where_no_store_is_offered(
    manager: socket.socket, memfds: list[int], offer: str | None
) -> None:
    """Or a stop would leave a mount behind that nobody will ever serve again."""
    environment = {"NOTIFY_SOCKET": manager.getsockname()}
    if offer is not None:
        environment["FDSTORE"] = offer
    systemd = Systemd(environment, "id")
    systemd.store(*memfds)
    assert not systemd.stored
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_both_descriptors_are_stored_under_the_identity(manager: socket.socket, memfds: list[int]) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": manager.getsockname(), "FDSTORE": "2"}, "id")
    systemd.store(*memfds)
    assert systemd.stored
    for fd, name in zip(memfds, ("gpufs-device-id", "gpufs-table-id"), strict=True):
        message, fds, _, _ = socket.recv_fds(manager, 100, 4)
        assert message.decode() == f"FDSTORE=1\nFDNAME={name}"
        assert os.path.sameopenfile(fds[0], fd)
        os.close(fds[0])


def test_descriptors_for_another_process_are_not_ours() -> None:
    environment = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"}
    assert not hands_over(environment)
    systemd = Systemd({}, "id")
    assert systemd.take(environment) is None and not systemd.handed_over
    assert not environment, "nor those of our children"
