"""Servers the tests run against, as context managers; pytest fixtures of them are in conftest.py."""

from .endpoint import S3Endpoint
from .faults import Fault, FaultProxy, fault_proxy
from .moto_server import moto_server
from .process import free_ports, running
from .weed import weed_binary, weed_server

__all__ = [
    "Fault",
    "FaultProxy",
    "S3Endpoint",
    "fault_proxy",
    "free_ports",
    "moto_server",
    "running",
    "weed_binary",
    "weed_server",
]
