"""The fast path process: answers what is on this host straight from /dev/fuse, relays the rest."""
