"""The structures are as large as the kernel's, and its headers agree where this host has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpufs.fastpath import wire

HEADER = Path("/usr/include/linux/fuse.h")


def _ioctl(number: int, size: int) -> int:
    """_IOW(229, number, a type of `size` bytes) of <asm-generic/ioctl.h>."""
    return 1 << 30 | size << 16 | 229 << 8 | number


def test_sizes_are_those_of_the_kernel() -> None:
    """The replies exactly; of requests only the beginning is read."""
    assert wire.IN_HEADER_SIZE == 40 and wire.IN_HEADER.size <= 40
    assert wire.OUT_HEADER.size == 16
    assert wire.ATTR.size == 88
    assert wire.ENTRY.size + wire.ATTR.size == 128  # struct fuse_entry_out
    assert wire.ATTR_OUT.size + wire.ATTR.size == 104  # struct fuse_attr_out
    assert wire.OPEN_OUT.size == 16
    assert wire.INIT_OUT.size == 64
    assert wire.BACKING_MAP.size == 16
    assert _ioctl(1, 16) == wire.BACKING_OPEN
    assert _ioctl(2, 4) == wire.BACKING_CLOSE


@pytest.mark.skipif(not HEADER.exists() or shutil.which("gcc") is None, reason="no kernel headers, or no gcc")
def test_offsets_and_flags_are_those_of_the_headers(tmp_path: Path) -> None:
    """Only what headers of any age have."""
    claims = {
        "sizeof(struct fuse_in_header)": wire.IN_HEADER_SIZE,
        "sizeof(struct fuse_out_header)": wire.OUT_HEADER.size,
        "sizeof(struct fuse_attr)": wire.ATTR.size,
        "sizeof(struct fuse_entry_out)": wire.ENTRY.size + wire.ATTR.size,
        "sizeof(struct fuse_attr_out)": wire.ATTR_OUT.size + wire.ATTR.size,
        "sizeof(struct fuse_init_out)": wire.INIT_OUT.size,
        "sizeof(struct fuse_open_in)": wire.OPEN_IN.size,
        "offsetof(struct fuse_in_header, pid)": 32,
        "offsetof(struct fuse_read_in, size)": wire.READ_IN.size - 4,
        "offsetof(struct fuse_attr, blksize)": wire.ATTR.size - 8,
        "offsetof(struct fuse_init_out, max_pages)": 28,
        "sizeof(struct fuse_getxattr_in)": 8,
        "FUSE_KERNEL_VERSION": 7,
        "FUSE_MAX_PAGES": wire.MAX_PAGES,
        "FUSE_PARALLEL_DIROPS": wire.PARALLEL_DIROPS,
        "FUSE_DO_READDIRPLUS": wire.DO_READDIRPLUS,
        "FUSE_CACHE_SYMLINKS": wire.CACHE_SYMLINKS,
        "FUSE_ASYNC_READ": wire.ASYNC_READ,
        "FUSE_BIG_WRITES": wire.BIG_WRITES,
        "FOPEN_KEEP_CACHE": wire.FOPEN_KEEP_CACHE,
        **{f"FUSE_{name}": getattr(wire, name) for name in OPCODES},
    }
    lines = [f'_Static_assert({claim} == {value}, "{claim}");' for claim, value in claims.items()]
    source = tmp_path / "claims.c"
    source.write_text("#include <stddef.h>\n#include <linux/fuse.h>\n" + "\n".join(lines))
    done = subprocess.run(["gcc", "-fsyntax-only", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OPCODES = "LOOKUP FORGET GETATTR OPEN READ RELEASE GETXATTR FLUSH INIT INTERRUPT BATCH_FORGET".split()
