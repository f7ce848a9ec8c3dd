"""The metadata index: what the remote dataset is known to hold, kept in LMDB across mounts."""
