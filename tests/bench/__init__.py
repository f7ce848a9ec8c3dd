"""Measurements of this checkout: `python -m tests.bench --help` lists them."""
