"""The FUSE wire format: structures, opcodes and flags, as in Linux's include/uapi/linux/fuse.h (7.44).

All integers are in the host's byte order; every request and reply starts with its header.
"""

from __future__ import annotations

from struct import Struct

MINOR = 44  # of the protocol described here; the kernel uses the smaller of this and its own

# struct fuse_in_header: len, opcode, unique, nodeid (then uid, gid, pid, total_extlen, padding)
IN_HEADER = Struct("<IIQQ")
IN_HEADER_SIZE = 40
# struct fuse_out_header: len, error, unique
OUT_HEADER = Struct("<IiQ")

# enum fuse_opcode
LOOKUP, FORGET, GETATTR = 1, 2, 3
OPEN, READ, RELEASE = 14, 15, 18
GETXATTR, FLUSH, INIT = 22, 25, 26
INTERRUPT, IOCTL, BATCH_FORGET = 36, 39, 42

# struct fuse_init_in: major, minor, max_readahead, flags, flags2 (then unused)
INIT_IN = Struct("<IIIII")
# struct fuse_init_out: major, minor, max_readahead, flags, max_background, congestion_threshold,
# max_write, time_gran, max_pages, map_alignment, flags2, max_stack_depth, unused
INIT_OUT = Struct("<IIIIHHIIHHII24x")
ASYNC_READ = 1 << 0
BIG_WRITES = 1 << 5
DO_READDIRPLUS = 1 << 13
PARALLEL_DIROPS = 1 << 18
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23
INIT_EXT = 1 << 30
PASSTHROUGH = 1 << 37 - 32  # in flags2
HAS_RESEND = 1 << 39 - 32  # in flags2

# struct fuse_open_in: flags, open_flags
OPEN_IN = Struct("<II")
# struct fuse_open_out: fh, open_flags, backing_id
OPEN_OUT = Struct("<QIi")
OPEN_REPLY = Struct("<IiQQIi")  # with its header
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_PASSTHROUGH = 1 << 7

# struct fuse_release_in: fh (then flags, release_flags, lock_owner)
RELEASE_IN = Struct("<Q")
# struct fuse_read_in: fh, offset, size (then read_flags, lock_owner, flags, padding)
READ_IN = Struct("<QQI")

# struct fuse_interrupt_in: unique
INTERRUPT_IN = Struct("<Q")

# struct fuse_attr: ino, size, blocks, atime, mtime, ctime, atimensec, mtimensec, ctimensec, mode,
# nlink, uid, gid, rdev, blksize, flags
ATTR = Struct("<QQQqqqIIIIIIIIII")
# struct fuse_entry_out: nodeid, generation, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec
ENTRY = Struct("<QQQQII")
# struct fuse_attr_out: attr_valid, attr_valid_nsec, dummy
ATTR_OUT = Struct("<QII")

# struct fuse_backing_map: fd, flags, padding
BACKING_MAP = Struct("<iIQ")
BACKING_OPEN = 0x4010E501  # FUSE_DEV_IOC_BACKING_OPEN = _IOW(229, 1, struct fuse_backing_map)
BACKING_CLOSE = 0x4004E502  # FUSE_DEV_IOC_BACKING_CLOSE = _IOW(229, 2, uint32_t)

# Notifications go out with unique 0 and their code in the error field.
NOTIFY_RESEND = 7
UNIQUE_RESEND = 1 << 63  # set in the unique of a request that was handed out before
