"""What the loop answers by itself, compared with what the filesystem process would have answered."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from pyfuse3 import EntryAttributes, FUSEError

from gpufs.cache import Cache, Limit
from gpufs.cache.layout import Layout
from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.loop import INTERNAL, FilesystemGone, Loop
from gpufs.fastpath.opening import Opening
from gpufs.fastpath.opens import OpenTable
from gpufs.filesystem.files import Files
from gpufs.filesystem.fuse import Operations
from gpufs.filesystem.tree import Tree
from gpufs.filesystem.waits import Waits
from gpufs.filesystem.xattrs import Attributes
from gpufs.handoff.feed import Recorder
from gpufs.handoff.handles import OURS
from gpufs.index import ROOT, Index
from gpufs.metrics import Metrics
from gpufs.source.base import Entry, Kind
from gpufs.view import FOREVER, Ownership, View
from tests.unit.fastpath.kernel import new_table
from tests.unit.filesystem.helpers import Watcher
from tests.unit.index.helpers import SOURCE, at, fill

DATA = os.urandom(70_000)
LONG = b"n" * 255
READER = 77  # the process id in all requests
ENTRIES = [
    Entry(b"small", Kind.FILE, len(DATA), 1_700_000_000_123_456_789, "v1"),
    Entry(b"empty", Kind.FILE, 0, 1, "v2"),
    Entry(b"huge", Kind.FILE, 1 << 42, 2**33 * 10**9 + 5, "v3"),
    Entry(b"owned", Kind.FILE, 513, 0, "v4", mode=0o4751, uid=12, gid=4_000_000_000),
    Entry(b"link", Kind.SYMLINK, 0, 7_000_000_001, "v5", target=b"to/somewhere"),
    Entry(b"sub", Kind.DIRECTORY, mtime_ns=9_000_000_009, mode=0o711, uid=5, gid=6),
    Entry(b"plain", Kind.DIRECTORY),
    Entry(LONG, Kind.FILE, 5, 1, "v6"),
    Entry("müll".encode(), Kind.FILE, 5, 1, "v7"),
    Entry(b"\xff\x01", Kind.FILE, 5, 1, "v8"),
]
NAMES = [entry.name for entry in ENTRIES]
ASKER = SimpleNamespace(pid=1)
VIEWS = {
    "plain": Ownership(None, None, None, None),
    "own": Ownership(1000, 2000, 0o640, 0o2750),
}


class SocketDevice(Device):
    """/dev/fuse as a message socket; it takes any file for passthrough."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.backing: set[int] = set()
        self._ids = 0

    def backing_open(self, fd: int) -> int:
        self._ids += 1
        self.backing.add(self._ids)
        return self._ids

    def backing_close(self, backing_id: int) -> bool:
        known = backing_id in self.backing
        self.backing.discard(backing_id)
        return known


@dataclass
class Answer:
    """`body`: what the kernel got; None when the request was forwarded, then `request` has it."""

    error: int
    body: bytes | None
    request: bytes = b""


class Rig:
    """A loop in a thread of its own, on a real index and cache; the test is kernel and filesystem process."""

    def __init__(self, folder: Path, ttl: float, view: str, passthrough: bool) -> None:
        self.metrics = Metrics()
        self.cache = Cache(
            folder, cache_size=Limit(1 << 30), min_free=Limit(0), metrics=self.metrics, boot_id="b"
        )
        self.index = Index(self.cache.index_directory(SOURCE), SOURCE)
        self.objects = Layout(folder)
        self.ttl = ttl
        self.view = View(VIEWS[view])
        kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel, self._device_end = socket.socketpair(*kind)
        self.filesystem, self._pair_end = socket.socketpair(*kind)
        self.feed, self._feed_end = socket.socketpair(*kind)
        self.device = SocketDevice(self._device_end.fileno())
        self._table_fd = new_table()
        self.table = OpenTable(self._table_fd)
        self.opening = Opening(self.device, self.table, passthrough)
        self.recorder = Recorder(self._feed_end, 1, passthrough)
        self.loop = Loop(
            self.device,
            self._pair_end,
            self.index,
            self.objects,
            self.view,
            ttl,
            self.opening,
            self.recorder,
        )
        self._unique = 0
        self.ended: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:
            self.ended = error

    def ask(
        self, opcode: int, inode: int, body: bytes = b"", *, resent: bool = False, pid: int = 77
    ) -> Answer:
        if not resent:
            self._unique += 2
        unique = self._unique | (wire.UNIQUE_RESEND if resent else 0)
        header = wire.IN_HEADER.pack(40 + len(body), opcode, unique, inode)
        request = header + bytes(8) + READER.to_bytes(4, "little") + bytes(4) + body
        self.kernel.send(request)
        ready, _, _ = select.select([self.kernel, self.filesystem], [], [], 20)
        assert ready, "neither answered nor forwarded"
        if self.kernel in ready:
            reply = self.kernel.recv(2 << 20)
            length, error, about = wire.OUT_HEADER.unpack_from(reply)
            assert (length, about) == (len(reply), unique)
            return Answer(-error, reply[16:])
        forwarded = self.filesystem.recv(2 << 20)
        assert forwarded == request, "forwarded as it came"
        return Answer(0, None, forwarded)

    def lookup(self, parent: int, name: bytes) -> Answer:
        return self.ask(wire.LOOKUP, parent, name + b"\0")

    def getattr(self, inode: int) -> Answer:
        return self.ask(wire.GETATTR, inode, bytes(16))

    def open(self, inode: int, flags: int = os.O_RDONLY) -> Answer:
        return self.ask(wire.OPEN, inode, wire.OPEN_IN.pack(flags, 0))

    def read(self, inode: int, handle: int, offset: int, size: int) -> Answer:
        return self.ask(wire.READ, inode, wire.READ_IN.pack(handle, offset, size) + bytes(20))

    def release(self, inode: int, handle: int) -> Answer:
        return self.ask(wire.RELEASE, inode, wire.RELEASE_IN.pack(handle) + bytes(16))

    def keep(self, name: str, data: bytes) -> int:
        """Put a file's bytes into the cache; its inode."""
        inode = at(self.index, name)
        os.close(self.cache.publish(inode.digest, memoryview(data)))
        return inode.number

    def object_path(self, name: str) -> str:
        return self.objects.object_path(at(self.index, name).digest)

    def adapter(self, opcode: str, *arguments: Any) -> EntryAttributes | int:
        """What pyfuse3's adapter answers: attributes, or an errno."""

        async def ask() -> EntryAttributes | int:
            async with trio.open_nursery() as nursery:
                nothing = cast(Any, None)
                waits = Waits(self.metrics)
                tree = Tree(nothing, self.index, self.ttl, self.metrics, waits, nursery, nothing)
                files = Files(tree, self.cache, nothing, nothing, Watcher(), self.metrics, waits, nursery)
                xattrs = Attributes(tree, self.cache, lambda path: path, SOURCE)
                operations = Operations(tree, files, xattrs, self.index, self.view, self.metrics)
                try:
                    return cast(EntryAttributes, await getattr(operations, opcode)(*arguments, ASKER))
                except FUSEError as error:
                    return int(error.errno)

        return trio.run(ask)

    def close(self) -> None:
        self.filesystem.close()
        if self.thread.is_alive():
            header = wire.IN_HEADER.pack(40, 999, 1, 1)
            self.kernel.send(header + bytes(16))  # nobody is there to forward it to
        self.thread.join(20)
        assert not self.thread.is_alive() and isinstance(self.ended, FilesystemGone), self.ended
        for entry in list(self.opening._files.values()):
            os.close(entry)
        for end in (self.kernel, self._device_end, self._pair_end, self.feed, self._feed_end):
            end.close()
        self.table.close()
        os.close(self._table_fd)
        self.index.close()
        self.cache.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(
            ttl: float = math.inf,
            view: str = "plain",
            passthrough: bool = True,
            age: float = 0.0,
            entries: list[Entry] = ENTRIES,
        ) -> Rig:
            rig = Rig(tmp_path, ttl, view, passthrough)
            stack.callback(rig.close)
            fill(rig.index, "", entries, started_ns=time.time_ns() - int(age * 1e9))
            if any(entry.name == b"sub" for entry in entries):
                fill(rig.index, "sub", [Entry(b"leaf", Kind.FILE, 3, 1, "v"), Entry(b"deep", Kind.DIRECTORY)])
            return rig

        yield make


def shown(attributes: bytes) -> dict[str, int]:
    fields = (
        "ino size blocks atime mtime ctime atime_ns mtime_ns ctime_ns mode nlink uid gid rdev blksize flags"
    )
    return dict(zip(fields.split(), wire.ATTR.unpack(attributes), strict=True))


def as_libfuse_sends_them(entry: EntryAttributes) -> dict[str, int]:
    """struct fuse_attr of what the adapter gave pyfuse3."""
    ours = {"ino": int(entry.st_ino), "size": entry.st_size, "blocks": entry.st_blocks, "flags": 0}
    for name in ("atime", "mtime", "ctime"):
        ours[name], ours[f"{name}_ns"] = divmod(getattr(entry, f"st_{name}_ns"), 10**9)
    ours |= {"mode": int(entry.st_mode), "nlink": entry.st_nlink, "uid": entry.st_uid, "gid": entry.st_gid}
    return ours | {"rdev": entry.st_rdev, "blksize": entry.st_blksize}


def seconds(whole: int, nanoseconds: int) -> float:
    return whole + nanoseconds / 1e9


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("ttl", [math.inf, 300.0])
def test_lookup_answers_as_the_filesystem_process(make: Any, ttl: float, view: str) -> None:
    """Every attribute the same; both lifetimes the same, to the time that passed between the two."""
    rig = make(ttl=ttl, view=view, age=0.0 if ttl == math.inf else 100.0)
    for name in NAMES:
        answer = rig.lookup(ROOT, name)
        theirs = rig.adapter("lookup", ROOT, name)
        assert isinstance(theirs, EntryAttributes) and answer.body is not None
        number, generation, valid, kept, valid_ns, kept_ns = wire.ENTRY.unpack_from(answer.body)
        assert number == theirs.st_ino and generation == theirs.generation
        assert shown(answer.body[wire.ENTRY.size :]) == as_libfuse_sends_them(theirs), name
        assert 0 <= seconds(valid, valid_ns) - theirs.entry_timeout < 5 and valid_ns < 10**9
        # Attributes of a directory hold for whole seconds here: up to one shorter, never longer.
        assert -1 < seconds(kept, kept_ns) - theirs.attr_timeout < 5
        assert theirs.entry_timeout == FOREVER if ttl == math.inf else 190 < seconds(valid, valid_ns) <= 200


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("ttl", [math.inf, 300.0])
def test_getattr_answers_as_the_filesystem_process(make: Any, ttl: float, view: str) -> None:
    """The root, files, links, directories, and an inode that has lost its name."""
    rig = make(ttl=ttl, view=view)
    gone = at(rig.index, "owned").number
    numbers = [ROOT, *(at(rig.index, name).number for name in ("small", "link", "sub", "plain", "sub/deep"))]
    fill(rig.index, "", [e for e in ENTRIES if e.name != b"owned"])
    for number in [*numbers, gone]:
        answer = rig.getattr(number)
        theirs = rig.adapter("getattr", number)
        assert isinstance(theirs, EntryAttributes) and answer.body is not None
        kept, kept_ns, _ = wire.ATTR_OUT.unpack_from(answer.body)
        assert shown(answer.body[wire.ATTR_OUT.size :]) == as_libfuse_sends_them(theirs)
        assert -1 < seconds(kept, kept_ns) - theirs.attr_timeout < 5


def test_a_name_that_is_not_there(make: Any) -> None:
    """Answered with inode 0, which the kernel remembers for as long as the listing holds."""
    rig = make(ttl=300.0, age=100.0)
    for name in (b"nothing", b"smal", b"small2", b"sub\xff", b"n" * 254):
        answer = rig.lookup(ROOT, name)
        theirs = rig.adapter("lookup", ROOT, name)
        assert isinstance(theirs, EntryAttributes) and answer.body is not None
        number, _, valid, _, nanoseconds, _ = wire.ENTRY.unpack_from(answer.body)
        assert number == theirs.st_ino == 0
        assert 190 < seconds(valid, nanoseconds) <= 200 and len(answer.body) == 128
        assert not any(answer.body[wire.ENTRY.size :])


def test_what_is_not_known_for_sure_is_forwarded(make: Any) -> None:
    """A listing too old or never made, a name too long, an unknown inode: the other process decides."""
    rig = make(ttl=300.0, age=301.0)
    assert rig.lookup(ROOT, b"small").body is None
    assert rig.lookup(ROOT, b"nothing").body is None
    assert rig.lookup(at(rig.index, "plain").number, b"x").body is None
    assert rig.lookup(at(rig.index, "sub").number, b"leaf").body is not None
    assert rig.lookup(at(rig.index, "sub").number, b"n" * 256).body is None
    assert rig.getattr(10**6).body is None
    assert rig.getattr(ROOT).body is not None, "attributes that are known are given, however old"
    assert rig.open(10**6).body is None
    rig.index.expire(at(rig.index, "sub").number)
    assert rig.lookup(at(rig.index, "sub").number, b"leaf").body is None
    for opcode in (
        1 + 4,
        17,
        23,
        27,
        28,
        29,
        34,
        44,
    ):  # READLINK, STATFS, LISTXATTR, ...: none of its business
        assert rig.ask(opcode, ROOT, bytes(32)).body is None


def test_the_last_seconds_of_a_listing(make: Any) -> None:
    """Less than a second left is not rounded up."""
    rig = make(ttl=300.0, age=299.2)
    answer = rig.lookup(ROOT, b"small")
    if answer.body is not None:  # else this machine took longer than the rest of the time
        _, _, valid, kept, nanoseconds, _ = wire.ENTRY.unpack_from(answer.body)
        assert valid == 0 and 0 < nanoseconds <= 800_000_000
        assert kept == int(FOREVER), "a file's attributes are those of one version"
        directory = rig.lookup(ROOT, b"sub")
        if directory.body is not None:
            assert wire.ENTRY.unpack_from(directory.body)[3] == 1


def test_requests_that_have_one_answer(make: Any) -> None:
    """ACLs and labels are not supported, as there; `user.` is forwarded; FLUSH never comes again."""
    rig = make()
    number = at(rig.index, "small").number
    for name in (b"security.selinux", b"system.posix_acl_access", b"trusted.x", b"user", b"userx.y"):
        answer = rig.ask(wire.GETXATTR, number, bytes(8) + name + b"\0")
        assert (answer.error, answer.body) == (rig.adapter("getxattr", number, name), b"")
        assert answer.error == errno.EOPNOTSUPP
    for name in (b"user.gpufs.cached", b"user.x", b"user."):
        assert rig.ask(wire.GETXATTR, number, bytes(8) + name + b"\0").body is None
    for opcode in (wire.FLUSH, wire.IOCTL):
        assert rig.ask(opcode, number, bytes(32)) == Answer(errno.ENOSYS, b"")


def test_a_cached_file_is_opened_in_passthrough(make: Any) -> None:
    """Open twice, closed twice: one backing id, gone afterwards; every open is told to the feed."""
    rig = make()
    number = rig.keep("small", DATA)
    for _ in range(2):
        answer = rig.open(number)
        assert answer.body is not None
        assert wire.OPEN_OUT.unpack(answer.body) == (number | OURS, wire.FOPEN_PASSTHROUGH, 1)
    assert rig.device.backing == {1}
    for _ in range(2):
        assert rig.release(number, number | OURS) == Answer(0, b"")
    assert not rig.device.backing and len(rig.table) == 0
    digest = at(rig.index, "small").digest
    assert list(rig.recorder._records) == [(number, digest, READER, False)] * 2


def test_opens_that_the_filesystem_process_decides(make: Any) -> None:
    """Not cached, empty, for writing, a directory."""
    rig = make()
    number = rig.keep("small", DATA)
    assert rig.open(at(rig.index, "huge").number).body is None
    assert rig.open(at(rig.index, "empty").number).body is None
    assert rig.open(at(rig.index, "sub").number).body is None
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDONLY | os.O_APPEND):
        assert rig.open(number, flags).body is None
    assert len(rig.loop.opens_forwarded) == 7 and len(rig.table) == 0 and not rig.recorder._records


def test_a_cache_file_of_the_wrong_size_is_not_used(make: Any) -> None:
    """A truncated entry would be read as a short file: the other process finds and replaces it."""
    rig = make()
    number = rig.keep("small", DATA)
    os.truncate(rig.object_path("small"), len(DATA) - 1)
    before = len(os.listdir("/proc/self/fd"))
    assert rig.open(number).body is None
    assert len(os.listdir("/proc/self/fd")) == before and len(rig.table) == 0


def test_a_release_of_the_other_process_is_told_to_it(make: Any) -> None:
    """The kernel has its answer at once; the message is one whose answer nobody waits for."""
    rig = make()
    number = at(rig.index, "huge").number
    rig.opening.opened(0, number, wire.FOPEN_KEEP_CACHE, "/nowhere")
    rig.kernel.recv(100)  # the answer to that OPEN
    assert rig.release(number, number) == Answer(0, b"")
    told = rig.filesystem.recv(100)
    length, opcode, unique, inode = wire.IN_HEADER.unpack_from(told)
    assert (length, opcode, inode) == (len(told), wire.RELEASE, number) and unique & INTERNAL
    assert wire.RELEASE_IN.unpack_from(told, 40) == (number,) and len(told) == 64
    assert len(rig.table) == 0


def test_without_passthrough_reads_are_answered_from_the_cache(make: Any) -> None:
    """Any offset and size; nothing beyond the end; handles of the other process are not ours to read."""
    rig = make(passthrough=False)
    number = rig.keep("small", DATA)
    answer = rig.open(number)
    assert answer.body is not None
    assert wire.OPEN_OUT.unpack(answer.body) == (number | OURS, wire.FOPEN_KEEP_CACHE, 0)
    end = len(DATA)
    for offset, size in (
        (0, end),
        (0, 1 << 20),
        (4096, 4096),
        (end - 1, 4096),
        (end, 4096),
        (end + 9, 1),
        (0, 0),
    ):
        got = rig.read(number, number | OURS, offset, size)
        if got.body is None:  # not in memory, after a test that wants much of it
            with open(
                Layout(rig.cache._layout.root).object_path(at(rig.index, "small").digest), "rb"
            ) as file:
                file.read()
            got = rig.read(number, number | OURS, offset, size)
        assert got.body == DATA[offset : offset + size]
    assert rig.read(number, number, 0, 10).body is None
    assert rig.release(number, number | OURS) == Answer(0, b"")
    assert not rig.opening._files


def test_reads_of_a_file_that_a_predecessor_opened(make: Any) -> None:
    """Its descriptors died with it; the cache still has the bytes, or the other process is asked."""
    rig = make(passthrough=False)
    number = rig.keep("small", DATA)
    entry = rig.table.enter(number, 1, 0)
    rig.table.count(entry, 1)
    assert rig.read(number, number | OURS, 10, 20).body == DATA[10:30]
    other = at(rig.index, "owned").number
    assert rig.read(other, other | OURS, 0, 20).body is None
    assert rig.read(10**6, 10**6 | OURS, 0, 20).body is None
    rig.release(number, number | OURS)
    assert not rig.opening._files and len(rig.table) == 0


def test_resent_requests_are_counted_once(make: Any) -> None:
    """Asked again by a kernel that had no answer, for a process that had counted already."""
    rig = make()
    number = rig.keep("small", DATA)
    rig.open(number)
    entry = rig.table.get(number)
    assert entry is not None
    # As if the process had been killed between counting the open and answering it:
    rig.table.doubt(0, rig._unique, number, 0, 1)
    rig.opening._in_doubt = rig.table.doubts()
    answer = rig.ask(wire.OPEN, number, wire.OPEN_IN.pack(0, 0), resent=True)
    assert answer.body is not None
    entry = rig.table.get(number)
    assert entry is not None and entry.opens == 1 and len(rig.device.backing) == 1
    # And between counting a release and answering it:
    rig.open(number)
    rig._unique += 2
    rig.table.doubt(0, rig._unique, number, 2, 1)
    rig.table.count(entry, 1)
    rig.opening._in_doubt = rig.table.doubts()
    answer = rig.ask(wire.RELEASE, number, wire.RELEASE_IN.pack(number | OURS) + bytes(16), resent=True)
    assert answer == Answer(0, b"")
    assert entry.opens == 1


def test_requests_without_an_answer_get_none(make: Any) -> None:
    rig = make()
    for opcode in (wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT):
        header = wire.IN_HEADER.pack(56, opcode, 99, ROOT)
        rig.kernel.send(header + bytes(32))
    assert rig.lookup(ROOT, b"small").body is not None, "the first message that comes back"


def test_the_end_of_the_filesystem_process_ends_the_loop(make: Any) -> None:
    rig = make()
    assert rig.lookup(ROOT, b"small").body is not None
    rig.filesystem.close()
    rig.kernel.send(wire.IN_HEADER.pack(40, 17, 2, ROOT) + bytes(16))
    rig.thread.join(20)
    assert isinstance(rig.ended, FilesystemGone)
