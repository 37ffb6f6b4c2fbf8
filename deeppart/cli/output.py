"""Commands are declared by their function, which returns one record: it is printed as JSON, or as lines and tables."""

from __future__ import annotations

import functools
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from deeppart import offline
from deeppart.cli.commands import GOOD, NOT_GOOD, REFUSED, end_quietly, print_json, printable, tell
from deeppart.errors import FormatError, RestoreError, StructureMismatchError
from deeppart.model import Manifest, show_bytes, show_rate, show_seconds

#: Longer integers are written in hexadecimal: many JSON readers do not support them.
_MOST_BITS = 64
#: Longer texts are cut in tables and lines, but not in --json.
_MOST_CHARACTERS = 60
#: The same for the items of a value container, which are followed by their number: "(1000000 in a list)".
_RUN_CHARACTERS = 36
#: The same for a value that was selected by its path.
_MOST_ALONE = 1000
#: Width if the output is not a terminal: nothing is cut or wrapped in a file or a pipe.
_UNLIMITED_COLUMNS = 100_000

#: Errors about the checkpoint itself rather than about the way the command was called.
ABOUT_CONTENT = (FormatError, RestoreError, StructureMismatchError)

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
    """A console without markup: text from a checkpoint is printed literally."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        if not self.is_terminal:
            self.width = _UNLIMITED_COLUMNS

    def on_broken_pipe(self) -> NoReturn:
        sys.exit(end_quietly())


def console() -> Console:
    """The console on which a command prints."""
    return PlainConsole()


#: Returns the lines and tables to print for a record.
Lines = Callable[[Any], Iterable[Any]]


class Shown(NamedTuple):
    """A record with its own ``lines``, used instead of the command's; None prints nothing."""

    record: Any
    lines: Lines | None


def command(
    summary: str, lines: Lines | None = None, *, name: str | None = None, damage_code: int = NOT_GOOD
) -> Callable[..., click.Command]:
    """Declare a command whose function returns a record or a :class:`Shown`.

    The record is printed as a document with ``--json``, otherwise by ``lines``. Its ``good`` decides the exit code:
    true (the default), false, or None if unknown. ``damage_code`` is the exit code for :data:`ABOUT_CONTENT` errors.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(**arguments: Any) -> int:
            try:
                found = function(**arguments)
            except ABOUT_CONTENT as error:
                return tell(error, damage_code, wants_json())
            record, shown_as = found if isinstance(found, Shown) else (found, lines)
            if shown_as is not None and wants_json():
                print_json(to_json(record))
            elif shown_as is not None:
                render(shown_as(record))
            return {True: GOOD, False: NOT_GOOD, None: REFUSED}[getattr(record, "good", True)]

        made = click.command(name, short_help=summary)(run)
        made.params.append(json_option())
        return made

    return declare


def json_option() -> click.Option:
    """``--json``, read by :func:`wants_json`."""

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[__name__] = value

    return click.Option(["--json"], is_flag=True, expose_value=False, callback=keep, help="Print one JSON document.")


def wants_json() -> bool:
    """Whether the current command was called with ``--json``."""
    return bool(click.get_current_context().meta.get(__name__))


def render(lines: Iterable[Any], out: Console | None = None) -> None:
    """Print lines and tables."""
    out = out or console()
    for each in lines:
        out.print(each, soft_wrap=isinstance(each, Text) or not (out.is_terminal or isinstance(each, Table)))


def line(text: str, style: str = "") -> Text:
    """A line with control characters escaped, so that text from a file cannot control the terminal."""
    return Text(printable(text), style)


def to_json(value: Any) -> Any:
    """The JSON document of a record: its fields by name, and the properties listed in its ``json_also``.

    The field metadata "json" may be False (omit the field), "value" or "values" (a value of a checkpoint, or a dict of
    such values) or "inline" (merge its fields into the record's, as is done for manifests). A dict becomes a list of
    pairs, since its keys need not be strings. Values that JSON lacks are written as Python's text; integers of more
    than 64 bits in hexadecimal, since Python refuses to convert very long ones to decimal.
    """
    if isinstance(value, Manifest):
        return {**to_json(value.attempt), **{name: getattr(value, name) for name in ("created", "library", "signed")}}
    if is_dataclass(value):
        return _record_json(value)
    if isinstance(value, Mapping):
        return [[to_json(key), to_json(item)] for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(to_json, value), strict=True))
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if type(value).__name__ == "ndarray":
        return _elements_json(value)
    if type(value) is int:
        return value if value.bit_length() < _MOST_BITS else hex(value)
    if value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value)):
        return value
    return str(value) if isinstance(value, (str, Path)) else repr(value)


def _record_json(record: Any) -> dict[str, Any]:
    document = {name: to_json(getattr(record, name)) for name in getattr(record, "json_also", ())}
    for each in fields(record):
        form, item = each.metadata.get("json", True), getattr(record, each.name)
        if not form or each.name.startswith("_"):
            continue
        if form == "inline" or isinstance(item, Manifest):
            document |= to_json(item)
        elif form is True or is_dataclass(item):
            document[each.name] = to_json(item)
        else:
            is_dict = form == "values" and item is not None
            document[each.name] = (
                [[key, json_value(each)] for key, each in item.items()] if is_dict else json_value(item)
            )
    return document


def table_of(records: Sequence[Any]) -> Table:
    """A table of records of one class, by its ``columns``: heading -> field. Columns of text are aligned to the left.

    The suffix of a field's name is its unit: ``nbytes``, ``age_s``, ``bytes_per_s``.
    """
    names = type(records[0]).columns
    cells = [[_cell(name, getattr(record, name)) for name in names.values()] for record in records]
    right = [not any(type(getattr(record, name)) in (str, tuple) for record in records) for name in names.values()]
    shown = table(*names, left=[heading for heading, is_right in zip(names, right, strict=True) if not is_right])
    for row in cells:
        shown.add_row(*row)
    return shown


def table(*headings: str, left: Sequence[str] = ()) -> Table:
    """An empty table; columns are aligned to the right, those in ``left`` to the left."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        if heading in left:
            made.add_column(heading, overflow="fold")
        else:
            made.add_column(heading, justify="right", no_wrap=True)
    return made


def _cell(name: str, value: Any) -> str | Text:
    if name == "created":
        return moment(value)
    if value is None:
        return "?" if name in ("ranks", "raw_bytes") else "-"
    if name == "state_text":
        return _state_and_reasons(value)
    if isinstance(value, tuple):
        return "\n".join(printable(str(item)) for item in value)
    if name.endswith("_per_s"):
        return show_rate(value)
    if name.endswith("_s") or name == "seconds":
        return show_seconds(value)
    if name.endswith("bytes"):
        return show_bytes(value)
    return f"{value:,}" if type(value) is int and "step" not in name else printable(str(value))


def _state_and_reasons(text: str) -> Text:
    state = next((state for state in _STYLES if text.startswith(state)), text)
    return state_text(state).append(printable(text[len(state) :]), "default not bold")


def state_text(state: str) -> Text:
    """A state in its color."""
    return Text(state, _STYLES.get(state, ""))


def moment(iso: str | None) -> str:
    """UTC time to the second: ``2026-11-21 04:29:49``."""
    return "" if iso is None else iso[:19].replace("T", " ")


def count(number: int, noun: str) -> str:
    """``1 part``, ``2 parts``."""
    plural = noun[:-1] + "ves" if noun.endswith("leaf") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def counts(held: Any) -> str:
    """``2 leaves and 1 value``, from a record's counts."""
    return f"{count(held.leaves, 'leaf')} and {count(held.values, 'value')}"


def unchecked_line(*steps: int) -> str:
    """A line about signed steps whose signatures were not checked because no key was given."""
    found = sorted(set(steps))
    which = (
        f"step {found[0]} is signed; its" if len(found) == 1 else f"steps {offline.name_ranks(found)} are signed; their"
    )
    return f"{which} signatures were not checked, for lack of a key (--sign-key-file)"


@contextmanager
def progress(description: str = "", screen: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """A transient progress bar on a terminal. Yields a function of (bytes done, bytes in all).

    While the bar is shown, print only to ``screen``.
    """
    screen = screen or console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=wants_json() or not screen.is_terminal,
    ) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- values of checkpoints; their modules import torch, so only inside functions: --help and completion stay fast ---


def json_value(value: Any) -> Any:
    """The JSON of a value of a checkpoint. Of containers, only those of small values are expanded; a dict becomes a
    list of [key, value].
    """
    from deeppart.state.tree import container_kind
    from deeppart.state.values import describe_value

    if container_kind(value) is not None:
        if isinstance(value, (list, tuple)):
            return [json_value(item) for item in value]
        return [[json_value(key), json_value(item)] for key, item in value.items()]
    return describe_value(value) if type(value) is io.BytesIO else _scalar(value)


def _elements_json(array: Any) -> Any:
    """Nested lists of numbers if JSON represents them exactly, otherwise of Python's text; times as numpy's text."""
    import numpy as np

    if array.dtype.kind in "mM":
        return array.astype(np.str_).tolist()
    is_plain = array.dtype.kind in "bi" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))
    return array.tolist() if is_plain and array.dtype.itemsize <= 8 else _nested(array.tolist())


def _nested(items: Any) -> Any:
    return list(map(_nested, items)) if isinstance(items, list) else json_value(items)


def _scalar(value: Any) -> Any:
    from deeppart.state.values import text_of

    return to_json(value) if value is None or type(value) in (bool, int, float, str) else text_of(value)


def value_text(value: Any, form: str | None = None, *, is_alone: bool = False) -> str:
    """A small value as text, cut to part of a line; with ``is_alone``, to a few lines that say what was omitted."""
    from deeppart.state.tree import container_kind, describe_leaf_value

    if container_kind(value) is not None:
        what = f"a {form}" if form else ""
        if is_alone:
            return printable(describe_leaf_value(value, _MOST_ALONE, _MOST_ALONE, what))
        return printable(describe_leaf_value(value, _RUN_CHARACTERS, what=what))
    text = printable(_as_text(value))
    if not is_alone:
        return cut(text)
    return text if len(text) <= _MOST_ALONE else f"{text[:_MOST_ALONE]} ... ({len(text):,} characters, --full has them)"


def _as_text(value: Any) -> str:
    from deeppart.state.values import describe_value, text_of

    if type(value) is int and value.bit_length() >= _MOST_BITS:
        return hex(value)
    return describe_value(value) if type(value) is io.BytesIO else text_of(value)


def cut(text: str) -> str:
    """A text made printable, and cut if it is long."""
    text = printable(text)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
