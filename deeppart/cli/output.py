"""What the commands share: exit codes, consoles, JSON, sizes and times for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

#: Exit codes (docs/commands.md).
GOOD, NOT_GOOD, REFUSED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

#: Columns where the output is no terminal: nothing is cut or wrapped in a file or a pipe.
_UNLIMITED_COLUMNS = 100_000

_STYLES = {
    "complete": "green",
    "sound": "green",
    "recoverable": "yellow",
    "unfinished": "yellow",
    "newer": "yellow",
    "removed": "yellow",
    "damaged": "bold red",
}


class PlainConsole(Console):
    """A console that takes text as it is: what comes out of a checkpoint is never markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        if not self.is_terminal:
            self.width = _UNLIMITED_COLUMNS

    def on_broken_pipe(self) -> NoReturn:
        sys.exit(end_quietly())


def end_quietly() -> int:
    """The reader of our pipe has gone (``deeppart show DIR | head``): say no more; returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
    return BROKEN_PIPE


def console() -> Console:
    """Where a command prints."""
    return PlainConsole()


def print_json(document: Any) -> None:
    """Print the one JSON document of a command."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def state_text(state: str) -> Text:
    """A state, coloured."""
    return Text(state, _STYLES.get(state, ""))


def size(nbytes: int) -> str:
    """Bytes for people, in powers of 1000: ``4.02 GB``."""
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def moment(iso: str | None) -> str:
    """UTC time to the second: ``2026-11-21 04:29:49``."""
    return "" if iso is None else iso[:19].replace("T", " ")


def count(number: int, noun: str) -> str:
    """``1 part``, ``2 parts``."""
    plural = noun[:-1] + "ves" if noun.endswith("leaf") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def some(texts: Sequence[str], most: int) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def printable(text: str) -> str:
    """Text from a file with control characters spelled out, so that it cannot steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
