"""The commands ``deeppart ls|show|verify|prune`` (docs/commands.md): what :mod:`deeppart.inspecting` finds, printed."""

from deeppart.cli.app import main

__all__ = ["main"]
