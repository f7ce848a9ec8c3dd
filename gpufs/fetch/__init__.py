"""Bringing bytes from the source to this host: workers, single flight, read-ahead, fetching."""
