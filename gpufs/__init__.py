"""gpufs: a remote dataset as a local read-only tree, at local NVMe speed."""

__version__ = "0.1.0"
