"""A scripted NFS server of a small tree, for what a real one does rarely: in a thread, on a loopback port."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

NULL_ATTRIBUTES = struct.pack(">I", 0)
LOOKUP, READLINK, READ, READDIR, READDIRPLUS = 3, 5, 6, 16, 17


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


@dataclass
class FakeNfs:
    """`files`: path -> content; `links`: path -> target. Handles are paths."""

    files: dict[bytes, bytes] = field(default_factory=dict)
    links: dict[bytes, bytes] = field(default_factory=dict)
    tells_attributes: bool = True  # along with names and bytes
    has_plus: bool = True
    per_part: int = 1000  # names
    repeats: bool = False  # the first part of a listing, for ever
    most_read: int = 65536
    gives_at_most: int = 1 << 30  # bytes of a READ, whatever is asked for
    fragment: int = 1 << 30  # bytes of an answer's fragments
    ctime: int = 1_000_000_000  # of everything
    # Told each call before it is answered: procedure -> status to answer instead, or None.
    hook: Callable[[int], int | None] = lambda procedure: None
    calls: list[int] = field(default_factory=list)
    port: int = 0

    def attributes(self, path: bytes) -> bytes:
        kind, size = 2, 4096
        if path in self.files:
            kind, size = 1, len(self.files[path])
        elif path in self.links:
            kind, size = 5, len(self.links[path])
        number = sum(path) + 7 * len(path)
        head = struct.pack(">5I2Q2I2Q", kind, 0o640, 1, 10, 20, size, size, 0, 0, 1, number)
        return head + struct.pack(">6I", 0, 0, 1_000_000_000, 5, self.ctime, 6)

    def optional(self, path: bytes) -> bytes:
        return struct.pack(">I", 1) + self.attributes(path) if self.tells_attributes else NULL_ATTRIBUTES

    def names(self, directory: bytes) -> list[bytes]:
        prefix = directory + b"/" if directory else b""
        below = [p[len(prefix) :] for p in (*self.files, *self.links) if p.startswith(prefix)]
        return [b".", b"..", *sorted({name.split(b"/")[0] for name in below})]

    def exists(self, path: bytes) -> bool:
        return any(p == path or p.startswith(path + b"/") for p in (*self.files, *self.links))

    def answer(self, program: int, procedure: int, arguments: bytes) -> bytes:
        if program == 100005:
            return struct.pack(">I", 0) + opaque(b"/") + struct.pack(">II", 1, 1)
        self.calls.append(procedure)
        status = self.hook(procedure)
        if status is not None:
            return struct.pack(">I", status) + NULL_ATTRIBUTES
        (length,) = struct.unpack_from(">I", arguments)
        path = arguments[4 : 4 + length].lstrip(b"/")
        rest = arguments[4 + length + -length % 4 :]
        return struct.pack(">I", 0) + self.result(procedure, path, rest)

    def result(self, procedure: int, path: bytes, rest: bytes) -> bytes:
        if procedure == 1:
            return self.attributes(path)
        if procedure == LOOKUP:
            (length,) = struct.unpack_from(">I", rest)
            name = rest[4 : 4 + length]
            found = path + b"/" + name if path else name
            assert self.exists(found)
            return opaque(b"/" + found) + self.optional(found) + NULL_ATTRIBUTES
        if procedure == READLINK:
            return self.optional(path) + opaque(self.links[path])
        if procedure == READ:
            offset, length = struct.unpack_from(">QI", rest)
            data = self.files[path][offset : offset + min(length, self.gives_at_most)]
            ends = offset + len(data) == len(self.files[path])
            return self.optional(path) + struct.pack(">II", len(data), ends) + opaque(data)
        if procedure == 19:
            return NULL_ATTRIBUTES + struct.pack(">7IQ2II", self.most_read, *[0] * 6, 1 << 40, 0, 1, 0)
        return self.listing(path, struct.unpack_from(">Q", rest)[0], plus=procedure == READDIRPLUS)

    def listing(self, path: bytes, begin: int, *, plus: bool) -> bytes:
        names = self.names(path)
        if self.repeats:
            begin = 0
        answer = self.optional(path) + b"verifier"
        end = begin + self.per_part
        for number, name in enumerate(names[begin:end], begin + 1):
            full = path + b"/" + name if path else name
            answer += struct.pack(">IQ", 1, number) + opaque(name) + struct.pack(">Q", number)
            if plus:
                handle = struct.pack(">I", 1) + opaque(b"/" + full)
                answer += self.optional(full) + (handle if self.tells_attributes else NULL_ATTRIBUTES)
        return answer + struct.pack(">II", 0, end >= len(names) and not self.repeats)

    # -- RPC

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error), connection:
            while True:
                (mark,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
                call = connection.recv(mark & 0x7FFF_FFFF, socket.MSG_WAITALL)
                xid, _, _, program, _, procedure, _, length = struct.unpack_from(">8I", call)
                arguments = call[32 + length + -length % 4 + 8 :]
                reply = struct.pack(">6I", xid, 1, 0, 0, 0, 0) + self.answer(program, procedure, arguments)
                pieces = [reply[at : at + self.fragment] for at in range(0, len(reply), self.fragment)]
                for number, piece in enumerate(pieces, 1):
                    last = 0x8000_0000 if number == len(pieces) else 0
                    connection.sendall(struct.pack(">I", last | len(piece)) + piece)


@contextmanager
def serving(fake: FakeNfs) -> Iterator[FakeNfs]:
    made: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fake.port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    made.append(connection)
                    threads.append(threading.Thread(target=fake.serve, args=[connection]))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield fake
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in made:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
