"""Servers the tests run against, as context managers; pytest fixtures of them are in conftest.py."""

from .azurite import Azurite, azurite_command, azurite_server
from .endpoint import S3Endpoint
from .faults import Fault, FaultProxy, fault_proxy
from .file_servers import FileServer, ftp_server, sftp_server, smb_server, smbd_binary, sshd_binary
from .ganesha import NfsServer, nfs_server
from .gs_server import GsServer, gs_server
from .listing import BUCKET, ListingServer, Pattern, listing_server
from .moto_server import moto_server
from .process import free_ports, running
from .web_servers import WebServer, nginx_binary, nginx_server, python_server
from .weed import weed_binary, weed_server

__all__ = [
    "BUCKET",
    "Azurite",
    "Fault",
    "FaultProxy",
    "FileServer",
    "GsServer",
    "ListingServer",
    "NfsServer",
    "Pattern",
    "S3Endpoint",
    "WebServer",
    "azurite_command",
    "azurite_server",
    "fault_proxy",
    "free_ports",
    "ftp_server",
    "gs_server",
    "listing_server",
    "moto_server",
    "nfs_server",
    "nginx_binary",
    "nginx_server",
    "python_server",
    "running",
    "sftp_server",
    "smb_server",
    "smbd_binary",
    "sshd_binary",
    "weed_binary",
    "weed_server",
]
