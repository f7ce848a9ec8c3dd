"""An NFS server as the source, end to end; see tests/source and tests/conformance for the source itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.mount.test_file_source import look
from tests.mounts import Mounted, MountFactory, is_mounted, wait_until
from tests.servers import NfsServer, nfs_server

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20


@pytest.fixture
def data(nfs: NfsServer) -> Path:
    return Path(tempfile.mkdtemp(dir=nfs.root))


def test_the_tree_is_the_servers(nfs: NfsServer, data: Path, mount: MountFactory) -> None:
    """Names in any bytes, modes, owners, times, links, sparse and large files; specials are hidden."""
    (data / "sub/deeper").mkdir(parents=True)
    (data / "sub").chmod(0o751)
    data.chmod(0o755)
    (data / "plain").write_bytes(b"plain")
    (data / "tool").write_bytes(b"#!/bin/sh\n")
    (data / "tool").chmod(0o4755)
    os.chown(data / "plain", 12345, 54321)
    (data / "sub/large").write_bytes(os.urandom(2 * CHUNK + 5))
    with open(data / "sub/sparse", "wb") as sparse:
        sparse.truncate(3 * CHUNK)
        os.pwrite(sparse.fileno(), b"in the middle", CHUNK + 100)
    (data / "sub/empty").touch()
    os.utime(data / "sub/empty", ns=(0, 1_234_567_890_123_456_789))
    for name in (b"caf\xe9", b"caf\xff", "caf\u00e9".encode(), "caf\ufffd".encode()):
        with open(os.fsencode(data) + b"/" + name, "wb") as file:
            file.write(name)
    os.symlink(b"caf\xe9", os.fsencode(data) + b"/to \xfe")
    for number in range(200):
        (data / "sub/deeper" / f"link{number}").symlink_to(f"target{number}")
    os.mkfifo(data / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(data)
        try:
            listener.bind("sock")
        finally:
            os.chdir(where)
        mounted = mount(nfs.url(data.name), **nfs.options)
    seen = {name: what for name, what in look(data).items() if name not in ("pipe", "sock")}
    assert look(mounted.path) == seen
    status = mounted.status()
    assert {hidden["key"] for hidden in status["hidden"]} == {"pipe", "sock"}
    assert status["source"] == nfs.url(data.name)
    assert os.getxattr(mounted.path / "plain", "user.gpufs.key") == bytes(data / "plain")

    mounted.remount()
    assert look(mounted.path) == seen
    assert mounted.count("remote_requests") <= 1  # of the root, to be ready


def test_changes_are_seen_after_the_ttl(nfs: NfsServer, data: Path, mount: MountFactory) -> None:
    """Cases 1, 2 and 14: a reader of before keeps his version or gets ESTALE; names change their kind."""
    (data / "k").write_bytes(b"first")
    (data / "v").write_bytes(b"a file")
    (data / "big").write_bytes(old := os.urandom(3 * CHUNK))
    mounted = mount(nfs.url(data.name), metadata_ttl="1s", **nfs.options)
    with (mounted.path / "k").open("rb") as before, (mounted.path / "big").open("rb") as half_read:
        assert os.pread(half_read.fileno(), 100, 0) == old[:100]
        assert (mounted.path / "v").read_bytes() == b"a file"
        times = (data / "k").stat()
        (data / "k").write_bytes(b"fIrst")
        os.utime(data / "k", ns=(times.st_atime_ns, times.st_mtime_ns))
        (data / "big").write_bytes(new := os.urandom(3 * CHUNK))
        (data / "v").unlink()
        (data / "v").mkdir()
        (data / "v/1").write_bytes(b"below")
        wait_until(lambda: (mounted.path / "k").read_bytes() == b"fIrst", "the new byte")
        wait_until(lambda: (mounted.path / "big").read_bytes() == new, "the new version")
        wait_until(lambda: (mounted.path / "v").is_dir(), "the directory")
        assert (mounted.path / "v/1").read_bytes() == b"below"
        assert before.read() == b"first"
        with pytest.raises(OSError, match="Stale file handle"):
            os.pread(half_read.fileno(), 100, 2 * CHUNK)


def test_a_restart_and_a_silence_of_the_server(mount: MountFactory) -> None:
    """Readers of what is not cached wait and get their bytes; of what is cached they do not notice."""
    with nfs_server() as server:
        bodies = {f"{number}": os.urandom(50_000) for number in range(60)}
        bodies["large"] = os.urandom(3 * CHUNK)
        for name, body in bodies.items():
            (server.root / name).write_bytes(body)
        mounted = mount(server.url(), **server.options)
        os.listdir(mounted.path)
        mounted.may_log_errors = True
        assert (mounted.path / "0").read_bytes() == bodies["0"]
        server.signal(signal.SIGSTOP)
        results: list[bool] = []

        def read(names: list[str]) -> None:
            for name in names:
                results.append((mounted.path / name).read_bytes() == bodies[name])

        names = list(bodies)
        readers = [threading.Thread(target=read, args=[names[number::4]]) for number in range(4)]
        for reader in readers:
            reader.start()
        time.sleep(0.2)
        begin = time.monotonic()
        assert (mounted.path / "0").read_bytes() == bodies["0"]
        assert time.monotonic() - begin < 1
        server.kill()
        server.start()
        for reader in readers:
            reader.join(60)
        assert results == [True] * len(bodies)


def test_unmounting_while_the_server_is_silent(mount: MountFactory, fast_path: str) -> None:
    """Nobody is in D state: a reader can be killed (which takes the fast path), and the tree unmounted."""
    with nfs_server() as server:
        (server.root / "f").write_bytes(b"comes late")
        mounted = mount(server.url(), **server.options)
        os.listdir(mounted.path)
        mounted.may_log_errors = True
        server.signal(signal.SIGSTOP)
        with subprocess.Popen(["cat", mounted.path / "f"], stdout=subprocess.PIPE) as reader:
            time.sleep(0.3)
            state = Path(f"/proc/{reader.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "S"
            if fast_path == "auto":
                reader.kill()
            else:
                server.signal(signal.SIGCONT)
                assert reader.communicate(timeout=30)[0] == b"comes late"
                server.signal(signal.SIGSTOP)
        begin = time.monotonic()
        mounted.umount()
        assert time.monotonic() - begin < 15
        assert not is_mounted(mounted.path)


def refused(mounted: Mounted) -> str:
    """What `gpufs mount` says, in one line."""
    mounted.may_log_errors = True
    done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert not is_mounted(mounted.path)
    return done.stderr


def test_mount_says_what_is_wrong_and_what_to_do(nfs: NfsServer, data: Path, mount: MountFactory) -> None:
    (data / "f").write_bytes(b"x")
    data.chmod(0o700)

    def say(source: str, **options: str) -> str:
        return refused(mount(source, start=False, **nfs.options | options))

    server = f"nfs://127.0.0.1:{nfs.port}"
    text = say(f"{server}/no/such/export")
    assert "/no/such/export" in text and f"it exports: {nfs.root}" in text
    assert "no such file or directory" in say(nfs.url("missing"))
    assert "is not a directory" in say(nfs.url(f"{data.name}/f"))
    assert "does not export it to this host" in say(f"{server}{nfs.private}")
    text = say(nfs.url(data.name), nfs_uid="4711", nfs_gid="4711")
    assert "asked as user 4711, group 4711" in text and "nfs_uid" in text
