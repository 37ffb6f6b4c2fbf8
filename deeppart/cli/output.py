"""How the commands print: records as JSON and as rows of tables, consoles, counts and times, a progress bar."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from deeppart.cli.commands import end_quietly, printable
from deeppart.model import Manifest, StepKey, show_bytes, show_rate, show_seconds
from deeppart.offline.inspect.listing import name_ranks

#: JSON readers keep integers of so many bits.
_MOST_BITS = 64
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


def console() -> Console:
    """The console on which a command prints."""
    return PlainConsole()


def to_json(value: Any) -> Any:
    """What ``--json`` prints of a record: its fields, by their names.

    A dict, whose keys need not be text, is a list of pairs. What JSON does not have is text, as Python writes it;
    integers beyond 64 bits in hexadecimal, because Python refuses to write out those of thousands of digits.
    """
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value) if each.name[0] != "_"}
    if isinstance(value, Mapping):
        return [[to_json(key), to_json(item)] for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(to_json, value), strict=True))
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if type(value) is int:
        return value if value.bit_length() < _MOST_BITS else hex(value)
    if value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value)):
        return value
    return str(value) if isinstance(value, (str, Path)) else repr(value)


def record_json(record: Any, *properties: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """The same of one record, with some of its properties, and without some of its fields."""
    names = [*properties, *(each.name for each in fields(record) if each.name not in without)]
    return {name: to_json(getattr(record, name)) for name in names}


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """What ``--json`` says of the manifest of a step: which one it is, and who wrote it."""
    return {**to_json(manifest.attempt), **{name: getattr(manifest, name) for name in ("created", "library", "signed")}}


def table(*headings: str, left: Sequence[str] = ()) -> Table:
    """An empty table; its columns are aligned to the right, but for some."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        if heading in left:
            made.add_column(heading, overflow="fold")
        else:
            made.add_column(heading, justify="right", no_wrap=True)
    return made


def add_record(table: Table, record: Any, *names: str) -> None:
    """A row of fields of a record, in the units that their names tell: ``nbytes``, ``age_s``, ``bytes_per_s``."""
    table.add_row(*(_cell(name, getattr(record, name)) for name in names))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_per_s"):
        return show_rate(value)
    if name.endswith("_s") or name == "seconds":
        return show_seconds(value)
    if name.endswith("bytes"):
        return show_bytes(value)
    return f"{value:,}" if type(value) is int and "step" not in name else printable(str(value))


def state_text(state: str) -> Text:
    """A state, coloured."""
    return Text(state, _STYLES.get(state, ""))


def moment(iso: str | None) -> str:
    """UTC time to the second: ``2026-11-21 04:29:49``."""
    return "" if iso is None else iso[:19].replace("T", " ")


def count(number: int, noun: str) -> str:
    """``1 part``, ``2 parts``."""
    plural = noun[:-1] + "ves" if noun.endswith("leaf") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def step_names(keys: Iterable[StepKey]) -> dict[StepKey, str]:
    """``100``; ``100 (session 3f2a..., 7)`` for each of several attempts at one step."""
    listed = list(keys)
    several = {step for step, number in Counter(key.step for key in listed).items() if number > 1}
    return {key: name_step(key) if key.step in several else str(key.step) for key in listed}


def name_step(key: StepKey) -> str:
    """Step and session, the latter by its first digits, and its sequence."""
    return f"{key.step} (session {key.session[:8]}..., {key.sequence})" if key.session else f"{key.step} (older layout)"


def some(texts: Sequence[str], most: int) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def unchecked_line(*steps: int) -> str:
    """A line about signed steps whose signatures were not checked because no key was given."""
    found = sorted(set(steps))
    which = f"step {found[0]} is signed; its" if len(found) == 1 else f"steps {name_ranks(found)} are signed; their"
    return f"{which} signatures were not checked, for lack of a key (--sign-key-file)"


def progress_bar(console: Console, *, shown: bool) -> Progress:
    """The bar, where the output is a terminal; it is gone in the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
