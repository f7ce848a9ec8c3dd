"""Everything else that fsspec can list and read: FTP, SFTP, SMB, HDFS, Hugging Face and more."""

from .source import FsspecSource

__all__ = ["FsspecSource"]
