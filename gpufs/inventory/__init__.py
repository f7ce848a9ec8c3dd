"""Lists of objects that somebody else has made, in place of a listing: S3 Inventory, and plain ones."""

from gpufs.inventory.inventory import Inventory, open_inventory

__all__ = ["Inventory", "open_inventory"]
