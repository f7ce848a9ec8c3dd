"""What the fast path and the filesystem process say to each other, beside FUSE itself."""
