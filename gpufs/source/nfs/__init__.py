"""NFS servers, by a client of its own: nothing is mounted, and no process can hang in the kernel."""

from .settings import FORM, NfsSettings, Place, parse_place
from .source import NfsSource

__all__ = ["FORM", "NfsSettings", "NfsSource", "Place", "parse_place"]
