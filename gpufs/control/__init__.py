"""The control socket of a mount: where it is, how the daemon serves it, how a command calls it."""
