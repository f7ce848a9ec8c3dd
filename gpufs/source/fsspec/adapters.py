"""One connection through fsspec: listing, looking and reading, with what single protocols need besides.

What differs from plain fsspec: FTP asks for the facts it needs of one file (fsspec lists its whole directory)
and reads a range without an abort; SFTP checks the host's key and reads ahead; SMB locks nobody out, lists
sizes with names, and has a connection for each adapter.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Info = dict[str, Any]  # as fsspec gives it: name, type, size and what else there is


class Adapter:
    """Any filesystem of fsspec. `options` are those of its class, which may be taken from the URL."""

    def __init__(self, make: Any, options: Mapping[str, Any]) -> None:
        self.fs = make(**self.prepared(dict(options)), skip_instance_cache=True, use_listings_cache=False)

    def prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        return options

    def list(self, path: str) -> list[Info]:
        """The children of a directory, whose names may be paths. A file gives itself."""
        self.fs.invalidate_cache()
        return list(self.fs.ls(path, detail=True))

    def info(self, path: str) -> Info:
        self.fs.invalidate_cache()
        return dict(self.fs.info(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self.fs.cat_file(path, offset, offset + length))

    def close(self) -> None:
        """Break the connection; may be called from any thread."""


class FtpAdapter(Adapter):
    _FACTS = ("type", "size", "modify", "unique")
    _has_facts: bool | None = None

    def prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"timeout": 10} | options

    def list(self, path: str) -> list[Info]:
        if not self._knows_facts():
            return super().list(path)
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(path)
        children = []
        for name, facts in self.fs.ftp.mlsd(path):
            if facts.get("type") not in ("cdir", "pdir"):
                children.append(self._from_facts(f"{path}/{name}", facts))
        return children

    def info(self, path: str) -> Info:
        if not self._knows_facts():
            return super().info(path)
        lines = self.fs.ftp.sendcmd(f"MLST {path}").split("\n")
        facts = lines[1].strip().partition(" ")[0]
        pairs = (fact.partition("=") for fact in facts.rstrip(";").split(";"))
        return self._from_facts(path, {name.lower(): value for name, _, value in pairs})

    def read(self, path: str, offset: int, length: int) -> bytes:
        ftp = self.fs.ftp
        ftp.voidcmd("TYPE I")
        data = bytearray()
        with ftp.transfercmd(f"RETR {path}", offset or None) as connection:
            while len(data) < length:
                piece = connection.recv(min(1 << 18, length - len(data)))
                if not piece:
                    break
                data += piece
        with suppress(*ftp_errors()):  # 426 when there was more: the connection was closed on purpose
            ftp.voidresp()
        return bytes(data)

    def close(self) -> None:
        self.fs.ftp.close()

    def _knows_facts(self) -> bool:
        if self._has_facts is None:
            try:
                said = self.fs.ftp.sendcmd("FEAT")
                self._has_facts = " MLST" in said.upper()
                if self._has_facts:
                    self.fs.ftp.sendcmd(f"OPTS MLST {';'.join(self._FACTS)};")
            except ftp_errors():
                self._has_facts = False
        return self._has_facts

    @staticmethod
    def _from_facts(name: str, facts: Mapping[str, str]) -> Info:
        kinds = {"dir": "directory", "cdir": "directory", "pdir": "directory", "file": "file"}
        kind = kinds.get(facts.get("type", "").lower(), "other")
        size = int(facts["size"]) if facts.get("size", "").isdecimal() and kind == "file" else None
        return {
            "name": name,
            "type": kind,
            "size": size,
            "modify": facts.get("modify"),
            "unique": facts.get("unique"),
        }


class SftpAdapter(Adapter):
    def __init__(self, make: Any, options: Mapping[str, Any]) -> None:
        super().__init__(_that_checks_keys(make), options)

    def prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        import paramiko

        chosen = paramiko.SSHConfig()
        with suppress(OSError):
            chosen = paramiko.SSHConfig.from_path(os.path.expanduser("~/.ssh/config"))
        known = chosen.lookup(options["host"])
        found: dict[str, Any] = {"timeout": 10, "banner_timeout": 10, "auth_timeout": 10}
        found |= {"port": int(known["port"])} if "port" in known else {}
        found |= {"username": known["user"]} if "user" in known else {}
        found |= {"key_filename": known["identityfile"]} if "identityfile" in known else {}
        found |= options
        found["host"] = known.get("hostname", options["host"])
        return found

    def list(self, path: str) -> list[Info]:
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(path)
        return [self._info(f"{path}/{item.filename}", item) for item in self.fs.ftp.listdir_attr(path)]

    def info(self, path: str) -> Info:
        return self._info(path, self.fs.ftp.lstat(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        with self.fs.ftp.open(path, "rb") as file:
            return b"".join(file.readv([(offset, length)]))

    def close(self) -> None:
        self.fs.client.close()

    def _info(self, path: str, found: Any) -> Info:
        if stat.S_ISLNK(found.st_mode):
            try:
                found = self.fs.ftp.stat(path)
            except OSError:
                return {"name": path, "type": "a symbolic link that leads nowhere"}
            if stat.S_ISDIR(found.st_mode):
                return {"name": path, "type": "a symbolic link to a directory"}
        kind = "other"
        if stat.S_ISDIR(found.st_mode):
            kind = "directory"
        elif stat.S_ISREG(found.st_mode):
            kind = "file"
        return {"name": path, "type": kind, "size": found.st_size, "mtime": found.st_mtime}


def _that_checks_keys(make: Any) -> Any:
    """fsspec's class, which takes any key of a host it does not know, made to look into known_hosts."""
    import paramiko

    class Checked(make):  # type: ignore[misc]  # a class that is found at run time
        def _connect(self) -> None:
            options = {name: value for name, value in self.ssh_kwargs.items() if name != "use_listings_cache"}
            self.client = paramiko.SSHClient()
            self.client.load_system_host_keys()
            self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            self.client.connect(self.host, **options)
            self.ftp = self.client.open_sftp()

    return Checked


class SmbAdapter(Adapter):
    """By smbclient itself, which fsspec's class calls with one connection for the whole process."""

    def prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        self._login: dict[str, Any] = {
            "port": int(options.get("port") or 445),
            "username": options.get("username"),
            "password": options.get("password"),
            "encrypt": options.get("encrypt"),
            "connection_timeout": 10,
            "connection_cache": {},
        }
        return options | {"register_session_retries": -1}  # it connects with the first request

    def list(self, path: str) -> list[Info]:
        import smbclient

        return [self._child(path, item) for item in smbclient.scandir(self._unc(path), **self._login)]

    def info(self, path: str) -> Info:
        import smbclient

        found = smbclient.stat(self._unc(path), **self._login)
        return {
            "name": path,
            "type": "directory" if stat.S_ISDIR(found.st_mode) else "file",
            "size": found.st_size,
            "mtime": found.st_mtime_ns // 1000 / 1e6,
            "ino": found.st_ino,
        }

    def read(self, path: str, offset: int, length: int) -> bytes:
        import smbclient

        data = bytearray()
        # share_access: without it the file would be locked for everybody else while it is read
        with smbclient.open_file(
            self._unc(path), mode="rb", buffering=0, share_access="rwd", **self._login
        ) as file:
            file.seek(offset)
            while len(data) < length and (piece := file.read(length - len(data))):
                data += piece
        return bytes(data)

    def close(self) -> None:
        import smbclient

        login = self._login
        smbclient.delete_session(
            self.fs.host, port=login["port"], connection_cache=login["connection_cache"], timeout=1
        )

    def _unc(self, path: str) -> str:
        return rf"\\{self.fs.host}" + path.rstrip("/").replace("/", "\\")

    @staticmethod
    def _child(path: str, item: Any) -> Info:
        about = item.smb_info
        return {
            "name": f"{path}/{item.name}",
            "type": "other" if item.is_symlink() else "directory" if item.is_dir() else "file",
            "size": about.end_of_file,
            "mtime": about.last_write_time.timestamp(),
            "ino": about.file_id,
        }


def ftp_errors() -> tuple[type[Exception], ...]:
    from ftplib import Error

    return (Error,)


def adapter_for(protocol: str) -> type[Adapter]:
    kinds: dict[str, type[Adapter]] = {
        "ftp": FtpAdapter,
        "sftp": SftpAdapter,
        "ssh": SftpAdapter,
        "smb": SmbAdapter,
    }
    return kinds.get(protocol, Adapter)
