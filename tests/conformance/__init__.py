"""One suite for every kind of source; see labs.py for how a kind joins it."""
