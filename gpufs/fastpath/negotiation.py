"""INIT: what is agreed with the kernel, and what the filesystem process is told of it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from struct import Struct

from gpufs.fastpath import wire

MAX_BACKGROUND = 256
CONGESTION = 192
# The most bytes the kernel asks for in one READ. Of a message over a socket pair 17 pages may lie anywhere;
# the rest is one piece of memory. Linux always finds 32 KiB in one piece (PAGE_ALLOC_COSTLY_ORDER), but not
# 1 MiB when its memory is full of small pages: the reply would be lost, and its reader would wait for ever.
LARGEST_READ = 96 << 10
READ_AHEAD = 1 << 20  # bytes
PAGE = 4096
_WANTED = (
    wire.ASYNC_READ
    | wire.BIG_WRITES
    | wire.DO_READDIRPLUS  # not READDIRPLUS_AUTO: pyfuse3 has no plain READDIR
    | wire.PARALLEL_DIROPS
    | wire.MAX_PAGES
    | wire.CACHE_SYMLINKS
    | wire.INIT_EXT
)
# libfuse uses splice, which a socket cannot serve on older kernels, only from minor 14 on.
_MINOR_FOR_LIBFUSE = 13


@dataclass(frozen=True, slots=True)
class Agreement:
    """What INIT settled, for the life of the mount. `resend`: the kernel can queue requests again."""

    read_ahead: int
    passthrough: bool
    resend: bool
    packed = Struct("<III")

    def pack(self) -> bytes:
        return self.packed.pack(self.read_ahead, self.passthrough, self.resend)

    @classmethod
    def unpack(cls, data: bytes) -> Agreement:
        read_ahead, passthrough, resend = cls.packed.unpack(data)
        return cls(read_ahead, bool(passthrough), bool(resend))

    def hello(self) -> bytes:
        """The INIT request that the filesystem process's libfuse gets in place of the kernel's."""
        body = Struct("<IIII").pack(7, _MINOR_FOR_LIBFUSE, self.read_ahead, _WANTED & ~wire.INIT_EXT)
        header = wire.IN_HEADER.pack(wire.IN_HEADER_SIZE + len(body), wire.INIT, 0, 0)
        return header + bytes(wire.IN_HEADER_SIZE - len(header)) + body


def agree(request: memoryview, passthrough: bool) -> tuple[Agreement, bytes]:
    """From the kernel's INIT (without its header): what is agreed, and the reply's body.

    `passthrough` is whether we can use it at all. Raises OSError(EPROTO) for a kernel whose protocol is not
    7.x.
    """
    major, minor, read_ahead, flags = Struct("<IIII").unpack_from(request)
    if major != 7:
        raise OSError(errno.EPROTO, f"the kernel speaks FUSE {major}.{minor}, not 7.x")
    flags2 = wire.INIT_IN.unpack_from(request)[4] if flags & wire.INIT_EXT else 0
    # The kernel takes its read-ahead from here; the bdi's setting is applied on top later.
    read_ahead = max(read_ahead, READ_AHEAD)
    passthrough = passthrough and bool(flags2 & wire.PASSTHROUGH)
    resend = bool(flags2 & wire.HAS_RESEND)
    reply = wire.INIT_OUT.pack(
        7,
        min(minor, wire.MINOR),
        read_ahead,
        flags & _WANTED,
        MAX_BACKGROUND,
        CONGESTION,
        LARGEST_READ,
        1,  # ns granularity of times
        LARGEST_READ // PAGE,
        0,
        (wire.PASSTHROUGH if passthrough else 0) | (wire.HAS_RESEND if resend else 0),
        1 if passthrough else 0,  # max_stack_depth: containers put overlayfs on top, the kernel allows 2
    )
    return Agreement(read_ahead, passthrough, resend), reply
