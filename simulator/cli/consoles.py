"""Consoles, and the tables that they print: what is the user's is printed as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

#: What goes into a file or a pipe is never cut or wrapped.
_UNLIMITED_COLUMNS = 10_000


class _Plain(Console):
    """A console on which nothing is markup: names of machines and states are the user's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """The reader has gone: the group of commands answers that, with an exit code of its own."""
        raise BrokenPipeError


def console() -> Console:
    """The console for tables."""
    found = _Plain()
    if not found.is_terminal:
        found.width = _UNLIMITED_COLUMNS
    return found


def status_console() -> Console:
    """The console for progress: not in the output that is piped on."""
    return _Plain(stderr=True)


def table(title: str, columns: Iterable[str], left: int = 1) -> Table:
    """A table whose first columns are texts and whose others are numbers."""
    found = Table(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(columns):
        found.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return found
