"""Watching a mount from outside: its figures, what they say, and the ways to show them."""
