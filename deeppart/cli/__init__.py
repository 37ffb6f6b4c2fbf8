"""The commands (docs/commands.md): what :mod:`deeppart.inspecting` and :mod:`deeppart.exporting` find and make."""

from deeppart.cli.app import main

__all__ = ["main"]
