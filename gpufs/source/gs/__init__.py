"""Google Cloud Storage, by its JSON API."""

from .source import GsSource

__all__ = ["GsSource"]
