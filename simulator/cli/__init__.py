"""The ``deeppart-sim`` command."""

from .app import main

__all__ = ["main"]
