"""The commands (docs/commands.md): options and output around :mod:`deeppart.offline`."""

from deeppart.cli.app import main

__all__ = ["main"]
