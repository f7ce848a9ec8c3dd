"""S3 and servers that speak its protocol. Nothing here imports a client library before the first request."""

from .settings import S3Settings
from .source import S3Source

__all__ = ["S3Settings", "S3Source"]
