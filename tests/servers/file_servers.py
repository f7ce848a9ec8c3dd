"""File servers on free loopback ports: FTP (pyftpdlib), SFTP (OpenSSH) and SMB (Samba)."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .process import free_ports, running
from .web_servers import listening

PASSWORD = "a password: of the test"


@dataclass(frozen=True)
class FileServer:
    """`root` is the directory that is served at `url`; `env` is what lets a client in."""

    url: str
    root: Path
    env: Mapping[str, str] = field(repr=False)


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def sshd_binary() -> str | None:
    return _find("sshd") if _find("ssh-keygen") else None


def smbd_binary() -> str | None:
    return _find("smbd") if _find("smbpasswd") else None


@contextmanager
def _work(kind: str) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=f"gpufs-{kind}-", dir="/var/tmp"))
    (work / "data").mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def ftp_server(port: int = 0) -> Iterator[FileServer]:
    with _work("ftp") as work:
        port = port or free_ports(1)[0]
        command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port)]
        command += ["-d", str(work / "data"), "-u", "someone", "-P", PASSWORD]
        (work / "netrc").write_text(f'machine 127.0.0.1 login someone password "{PASSWORD}"\n')
        (work / "netrc").chmod(0o600)
        with running(command, work / "ftp.log", listening(port)):
            yield FileServer(f"ftp://127.0.0.1:{port}", work / "data", {"NETRC": str(work / "netrc")})


@contextmanager
def sftp_server() -> Iterator[FileServer]:
    binary = sshd_binary()
    assert binary is not None
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # sshd insists on it
    with _work("sftp") as work:
        ssh = work / "home" / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        for key in (work / "host", ssh / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (port,) = free_ports(1)
        public = (work / "host.pub").read_text().split()
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
        settings = {
            "Port": port,
            "ListenAddress": "127.0.0.1",
            "HostKey": work / "host",
            "AuthorizedKeysFile": ssh / "id_ed25519.pub",
            "PidFile": work / "pid",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "MaxStartups": 100,
            "Subsystem": "sftp internal-sftp",
        }
        (work / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
        command = [binary, "-D", "-e", "-f", str(work / "sshd_config")]
        with running(command, work / "sshd.log", listening(port)):
            env = {"HOME": str(work / "home")}
            yield FileServer(f"sftp://{getpass.getuser()}@127.0.0.1:{port}{work}/data", work / "data", env)


@contextmanager
def smb_server() -> Iterator[FileServer]:
    binary = smbd_binary()
    assert binary is not None
    with _work("smb") as work:
        (port,) = free_ports(1)
        user = getpass.getuser()
        places = "private lock state cache pid ncalrpc".split()
        for place in places:
            (work / place).mkdir()
        directories = "".join(
            f"{place} {'dir' if place in ('private', 'ncalrpc') else 'directory'} = {work}/{place}\n"
            for place in places
        )
        (work / "smb.conf").write_text(
            f"[global]\n{directories}smb ports = {port}\ninterfaces = 127.0.0.1/8\n"
            "bind interfaces only = yes\nserver role = standalone server\nload printers = no\n"
            f"disable spoolss = yes\nlog file = {work}/smb.%m.log\nmap to guest = never\n"
            f"unix extensions = no\ninherit permissions = yes\nhide dot files = no\nmangled names = no\n"
            f"[data]\npath = {work}/data\nread only = yes\nvalid users = {user}\n"
        )
        subprocess.run(
            ["smbpasswd", "-c", work / "smb.conf", "-a", "-s", user],
            input=f"{PASSWORD}\n{PASSWORD}\n".encode(),
            check=True,
            capture_output=True,
        )
        command = [binary, "-F", "--no-process-group", "-s", str(work / "smb.conf")]
        with running(command, work / "smbd.log", listening(port)):
            env = {"FSSPEC_SMB_USERNAME": user, "FSSPEC_SMB_PASSWORD": PASSWORD}
            yield FileServer(f"smb://127.0.0.1:{port}/data", work / "data", env)
