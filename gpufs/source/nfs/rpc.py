"""ONC RPC over TCP (RFC 5531): calls go out, replies come in whatever order; nothing here ever waits."""

from __future__ import annotations

import errno
import itertools
import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_PORT_TAKEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
_CALL = struct.Struct(">IIIIIII")  # record mark, xid, CALL, RPC version, program, its version, procedure
_REPLY = struct.Struct(">IIIII")  # xid, REPLY, accepted or denied, verifier's flavour and length
_U32 = struct.Struct(">I")
_LAST = 0x8000_0000  # in a record mark: no more fragments of this record
_LONGEST = 32 << 20  # bytes of a record: more is no answer to anything that is asked here
_SCRATCH = 128 << 10
_WINDOW = 64  # calls that wait for their answers at once, on one connection
_RESERVED = range(665, 1024)  # ports that only root may use, as many servers want it


class Broken(Exception):
    """The connection is of no use any more. `silent`: nothing came, as opposed to a refusal."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.silent = silent


class Refused(Exception):
    """The server does not carry this call out: wrong program, version or credentials."""

    def __init__(self, reason: str, *, credentials: bool = False) -> None:
        super().__init__(reason)
        self.credentials = credentials


class Call(NamedTuple):
    program: int
    version: int
    procedure: int
    arguments: bytes


class Identity(NamedTuple):
    """Who asks: AUTH_SYS, the numbers that the server checks permissions with."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def pack(self) -> bytes:
        host = os.uname().nodename.encode()[:255]
        groups = self.groups[:16]  # more the protocol has no room for
        body = struct.pack(">I", 0) + opaque(host)
        body += struct.pack(f">III{len(groups)}I", self.uid, self.gid, len(groups), *groups)
        return struct.pack(">I", 1) + opaque(body) + bytes(8)  # and no verifier


def opaque(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data + bytes(-len(data) % 4)


class Connection:
    """One TCP connection. For one thread at a time."""

    def __init__(self, connected: socket.socket, identity: Identity) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._credentials = identity.pack()
        self._xids = itertools.count(random.getrandbits(31))
        self._out = bytearray()
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0
        self._body: memoryview | None = None  # of a fragment that has not come whole
        self._have = 0
        self._fragment_is_last = False
        self._fragments: list[memoryview] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def put(self, call: Call) -> int:
        """Have the call sent by the next send(); the number that its reply will have."""
        xid = next(self._xids) & 0xFFFF_FFFF
        length = _CALL.size - 4 + len(self._credentials) + len(call.arguments)
        self._out += _CALL.pack(_LAST | length, xid, 0, 2, call.program, call.version, call.procedure)
        self._out += self._credentials
        self._out += call.arguments
        return xid

    def send(self) -> None:
        """As much as the system takes. Raises Broken."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror}") from error

    def receive(self) -> list[tuple[int, memoryview | Refused]]:
        """The replies that have come since: results, or why there are none. Raises Broken."""
        records: list[memoryview] = []
        try:
            while self._receive_some(records):
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror}") from error
        return [_open_reply(record) for record in records]

    def close(self) -> None:
        self._socket.close()

    def _receive_some(self, records: list[memoryview]) -> bool:
        """False when there is nothing more for now."""
        if self._body is not None:
            wanted = len(self._body) - self._have
            got = self._socket.recv_into(self._body[self._have :])
            self._require(got)
            self._have += got
            if got == wanted:
                body, self._body = self._body, None
                self._fragment(body, records)
            return got == wanted
        got = self._socket.recv_into(self._scratch[self._filled :])
        self._require(got)
        self._filled += got
        more = self._filled == _SCRATCH
        self._cut(records)
        return more or self._body is not None

    def _require(self, got: int) -> None:
        if not got:
            raise Broken("the server closed the connection")

    def _cut(self, records: list[memoryview]) -> None:
        """Take the fragments out of what has come."""
        at, end = 0, self._filled
        while end - at >= 4:
            (mark,) = _U32.unpack_from(self._scratch, at)
            length = mark & ~_LAST
            if length > _LONGEST:
                raise Broken(f"what came is no answer: a record of {length} bytes")
            self._fragment_is_last = bool(mark & _LAST)
            at += 4
            body = memoryview(bytearray(length))
            there = min(length, end - at)
            body[:there] = self._scratch[at : at + there]
            at += there
            if there == length:
                self._fragment(body, records)
            else:
                self._body, self._have = body, there
        self._scratch[: end - at] = bytes(self._scratch[at:end])
        self._filled = end - at

    def _fragment(self, body: memoryview, records: list[memoryview]) -> None:
        if self._fragments or not self._fragment_is_last:
            self._fragments.append(body)
            if sum(map(len, self._fragments)) > _LONGEST:
                raise Broken("what came is no answer: it does not end")
            if not self._fragment_is_last:
                return
            body, self._fragments = memoryview(b"".join(self._fragments)), []
        records.append(body)


def _open_reply(record: memoryview) -> tuple[int, memoryview | Refused]:
    try:
        xid, is_reply, denied, _, verifier = _REPLY.unpack_from(record)
        if is_reply != 1:
            raise Broken("what came is no answer")
        if denied:  # the two words after are not a verifier, but why
            (reason,) = _U32.unpack_from(record, 12)
            if reason == 1:
                return xid, Refused("the server refuses AUTH_SYS credentials", credentials=True)
            return xid, Refused("the server speaks no version of RPC that is known here")
        at = _REPLY.size + verifier + -verifier % 4
        (status,) = _U32.unpack_from(record, at)
    except struct.error:
        raise Broken("what came is no answer: it is too short") from None
    if status:
        reasons = {1: "has no such service", 2: "does not speak this version", 3: "has no such procedure"}
        return xid, Refused("the server " + reasons.get(status, f"failed (RPC status {status})"))
    return xid, record[at + 4 :]


def connect(host: str, port: int, identity: Identity, timeout: float) -> Connection:
    """From a port below 1024 where this process may use one. Raises Broken."""
    end = time.monotonic() + timeout
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Broken(f"{host}: {error.strerror}") from error
    failure: OSError | None = None
    for family, _, _, _, place in places:
        try:
            made = _connect_from_reserved(family, place, end)
        except OSError as error:
            failure = error
            continue
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Connection(made, identity)
    silent = isinstance(failure, TimeoutError)
    why = "no answer" if silent or failure is None else failure.strerror
    raise Broken(f"{host} port {port}: {why}", silent=silent)


def _connect_from_reserved(family: int, place: tuple[object, ...], end: float) -> socket.socket:
    for port in random.sample(_RESERVED, 8) if os.geteuid() == 0 else ():
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.bind(("", port))
            made.settimeout(max(end - time.monotonic(), 0.01))
            made.connect(place)
            return made
        except PermissionError:
            made.close()
            break
        except OSError as error:
            made.close()
            if error.errno not in _PORT_TAKEN:
                raise
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(max(end - time.monotonic(), 0.01))
        made.connect(place)
        return made
    except OSError:
        made.close()
        raise


def exchange(
    connection: Connection, calls: Iterable[Call], silence: float, end: float
) -> Sequence[memoryview]:
    """Send all the calls and wait for all the answers, which come in the order of the calls.

    Raises Broken when nothing comes for `silence` seconds or not everything before `end`, Refused.
    """
    waiting: dict[int, int] = {}
    answers: dict[int, memoryview] = {}
    todo = enumerate(calls)
    heard = time.monotonic()
    poll = select.poll()
    more = True
    while more or waiting:
        while more and len(waiting) < _WINDOW:
            number, call = next(todo, (-1, None))
            if call is None:
                more = False
            else:
                waiting[connection.put(call)] = number
        if not waiting:
            break
        connection.send()
        poll.register(connection, select.POLLIN | (select.POLLOUT if connection.unsent else 0))
        left = min(heard + silence, end) - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000 + 1):
            raise Broken("the server does not answer", silent=True)
        for xid, answer in connection.receive():
            heard = time.monotonic()
            place = waiting.pop(xid, None)
            if place is None:
                raise Broken("what came answers nothing that was asked")
            if isinstance(answer, Refused):
                raise answer
            answers[place] = answer
    return [answers[place] for place in range(len(answers))]
