"""NFS-Ganesha, an NFS server in user space, on free loopback ports, exporting a directory of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .process import free_ports, running

# Ganesha insists on telling the port mapper of the host where it is. Nobody asks that one here, often
# there is none, and there can only be one: so the call is answered in its place.
_NO_PORT_MAPPER = "int rpcb_set(void) { return 1; } int rpcb_unset(void) { return 1; }"

_CONFIG = """
NFS_CORE_PARAM {{
  Protocols = 3; Bind_addr = 127.0.0.1; NFS_Port = {port}; MNT_Port = {mount_port};
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}}
# Files are changed behind its back, on the disk: it must not believe what it knew of them.
EXPORT {{
  Export_Id = 1; Path = "{root}"; Pseudo = "/data"; Protocols = 3; Transports = TCP; SecType = sys;
  Access_Type = RO; Squash = no_root_squash; PrivilegedPort = false; Attr_Expiration_Time = 0;
  FSAL {{ Name = VFS; }}
}}
# What only some hosts may have, and not this one.
EXPORT {{
  Export_Id = 2; Path = "{private}"; Pseudo = "/private"; Protocols = 3; Transports = TCP; SecType = sys;
  Access_Type = NONE; FSAL {{ Name = VFS; }}
  CLIENT {{ Clients = 192.0.2.1; Access_Type = RO; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""


class NfsServer:
    """`root` is the directory it exports, on the disk; `private` one that it exports to another host only."""

    def __init__(self, work: Path) -> None:
        self.root = work / "export"
        self.private = work / "private"
        self.root.mkdir()
        self.private.mkdir()
        self.port, self.mount_port = free_ports(2)
        self._work = work
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._library = work / "no_port_mapper.so"
        source = work / "no_port_mapper.c"
        source.write_text(_NO_PORT_MAPPER)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self._library, source], check=True)
        config = _CONFIG.format(
            port=self.port, mount_port=self.mount_port, root=self.root, private=self.private
        )
        (work / "ganesha.conf").write_text(config)

    def url(self, path: str = "") -> str:
        """Of a directory below the export."""
        return f"nfs://127.0.0.1:{self.port}{self.root / path}"

    @property
    def options(self) -> dict[str, str]:
        """Of a mount."""
        return {"nfs_mount_port": str(self.mount_port)}

    def start(self) -> None:
        work = self._work
        log = work / "ganesha.log"
        command = ["ganesha.nfsd", "-F", "-f", f"{work}/ganesha.conf", "-L", str(log)]
        command += ["-p", f"{work}/ganesha.pid"]
        env = dict(os.environ, LD_PRELOAD=str(self._library))
        log.write_bytes(b"")
        try:
            self._process = self._stack.enter_context(running(command, work / "output", self._answers, env))
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{log.read_text(errors='replace')[-3000:]}") from error

    def kill(self) -> None:
        """kill -9."""
        self._stack.close()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        for port in (self.port, self.mount_port):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
        return True


@contextmanager
def nfs_server() -> Iterator[NfsServer]:
    if shutil.which("ganesha.nfsd") is None:
        raise RuntimeError("no NFS server to test against: install the package nfs-ganesha-vfs")
    if os.geteuid() != 0:
        raise RuntimeError("NFS-Ganesha opens files by their handles, which only root may do")
    work = Path(tempfile.mkdtemp(prefix="gpufs-ganesha-", dir=_disk()))
    try:
        server = NfsServer(work)
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _disk() -> str:
    """A directory on a file system whose files can be opened by handles: not the overlay of a container."""
    libc = ctypes.CDLL(None, use_errno=True)
    places = ["/var/tmp", "/tmp", str(Path(__file__).parents[2])]
    for place in places:
        handle = (ctypes.c_uint * 34)(128)  # struct file_handle with room for 128 bytes
        number = ctypes.c_int()
        flags = 0
        at_fdcwd = -100
        if libc.name_to_handle_at(at_fdcwd, place.encode(), handle, ctypes.byref(number), flags) == 0:
            return place
    raise RuntimeError(f"none of {', '.join(places)} can be exported: name_to_handle_at(2) fails on them")
