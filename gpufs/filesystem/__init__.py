"""The filesystem process: names, open files and the FUSE adapter."""
