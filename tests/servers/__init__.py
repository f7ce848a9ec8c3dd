"""Servers the tests run against, as context managers; pytest fixtures of them are in conftest.py."""

from .endpoint import S3Endpoint
from .faults import Fault, FaultProxy, fault_proxy
from .listing import BUCKET, ListingServer, Pattern, listing_server
from .moto_server import moto_server
from .process import free_ports, running
from .weed import weed_binary, weed_server

__all__ = [
    "BUCKET",
    "Fault",
    "FaultProxy",
    "ListingServer",
    "Pattern",
    "S3Endpoint",
    "fault_proxy",
    "free_ports",
    "listing_server",
    "moto_server",
    "running",
    "weed_binary",
    "weed_server",
]
