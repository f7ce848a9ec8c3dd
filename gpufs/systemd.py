"""What systemd is told (sd_notify(3)) and what it keeps for us: the file descriptor store."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

_FIRST_FD = 3  # SD_LISTEN_FDS_START


@dataclass(frozen=True, slots=True)
class Kept:
    """The descriptors of a mount that a predecessor has left in the store."""

    device_fd: int
    table_fd: int


class Systemd:
    """Our side of systemd's protocol; without a systemd nothing happens.

    `identity` names the mount and all that the kernel has been told of it: what was stored under
    another identity is of no use to us.
    """

    def __init__(self, environment: MutableMapping[str, str], identity: str) -> None:
        self._address = _address(environment)
        # systemd 254 and newer tell how many descriptors they keep; older ones are not relied on.
        self._keeps = environment.get("FDSTORE", "").isdecimal() and int(environment["FDSTORE"]) >= 2
        self._names = f"gpufs-device-{identity}", f"gpufs-table-{identity}"
        self._watched = "WATCHDOG_USEC" in environment
        self.stored = False  # whether a successor will be given the mount
        self.handed_over = False  # whether we were given anything

    def take(self, environment: MutableMapping[str, str]) -> Kept | None:
        """The descriptors that came with our start, if they are this mount's and it is still alive."""
        given = _listen_fds(environment)
        self.handed_over = bool(given)
        device_fd, table_fd = (given.pop(name, -1) for name in self._names)
        if device_fd >= 0 and table_fd >= 0 and _is_connected(device_fd):
            unused, kept = list(given.items()), Kept(device_fd, table_fd)
            self.stored = bool(self._address and self._keeps)
        else:
            unused, kept = [*given.items(), *zip(self._names, (device_fd, table_fd), strict=True)], None
        for name, fd in unused:
            if fd >= 0:
                os.close(fd)
                self.notify("FDSTOREREMOVE=1", f"FDNAME={name}")
        return kept

    def store(self, device_fd: int, table_fd: int) -> None:
        """Have both kept for a successor. The device leaves the store by itself when it is unmounted."""
        if not self._address or not self._keeps:
            return
        self.stored = all(
            self.notify("FDSTORE=1", f"FDNAME={name}", fds=[fd])
            for name, fd in zip(self._names, (device_fd, table_fd), strict=True)
        )

    def alive(self) -> None:
        """Keep the service's watchdog quiet, if it has one."""
        if self._watched:
            self.notify("WATCHDOG=1")

    def notify(self, *lines: str, fds: Sequence[int] = ()) -> bool:
        """Send one message; False when it did not arrive."""
        return _send(self._address, lines, fds)


def tell(environment: Mapping[str, str], line: str) -> None:
    """Tell systemd one thing while there is no mount, if it has started this process."""
    _send(_address(environment), [" ".join(line.splitlines())])


def hands_over(environment: Mapping[str, str]) -> bool:
    """Whether systemd has started this process with descriptors out of the store."""
    return environment.get("LISTEN_PID") == str(os.getpid()) and environment.get("LISTEN_FDS", "0") != "0"


def _listen_fds(environment: MutableMapping[str, str]) -> dict[str, int]:
    """sd_listen_fds_with_names(3), and the variables taken out of the environment."""
    pid, count, names = (environment.pop(f"LISTEN_{n}", "") for n in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    return dict(zip(names.split(":"), fds, strict=False))


def _is_connected(device_fd: int) -> bool:
    """Whether the FUSE connection is still mounted somewhere."""
    poll = select.poll()
    poll.register(device_fd, 0)
    return not poll.poll(0)


def _address(environment: Mapping[str, str]) -> str:
    address = environment.get("NOTIFY_SOCKET", "")
    return "\0" + address[1:] if address.startswith("@") else address


def _send(address: str, lines: Sequence[str], fds: Sequence[int] = ()) -> bool:
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            socket.send_fds(sock, ["\n".join(lines).encode()], fds)
            return True
    return False
