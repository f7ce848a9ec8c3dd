"""Azure Blob Storage, and what is kept in it by Data Lake Storage (abfs)."""

from .account import Account, find_account
from .source import AzSource

__all__ = ["Account", "AzSource", "find_account"]
