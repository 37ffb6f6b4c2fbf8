"""Small values as the commands print them, for people and as JSON."""

from __future__ import annotations

import io
from typing import Any

from deeppart.cli.commands import printable
from deeppart.cli.output import to_json
from deeppart.state.tree.runs import describe_leaf_value, run_kind
from deeppart.state.tree.values import describe_value

#: Longer texts are cut where people read them; --json has all of them.
_MOST_CHARACTERS = 60
#: Of these for the items of a run, before how many there are: "(1000000 in a list)".
_RUN_CHARACTERS = 36
#: Of a value that was asked for by its path.
_MOST_ALONE = 1000
_UNLIMITED = 1 << 30
#: Longer integers are shown in hexadecimal.
_MOST_BITS = 64


def json_value(value: Any) -> Any:
    """A value of a checkpoint, as :func:`~deeppart.cli.output.to_json`; only runs of values are taken apart.

    A dict is a list of its entries, [key, value].
    """
    if run_kind(value) is not None:
        if isinstance(value, (list, tuple)):
            return [json_value(item) for item in value]
        return [[json_value(key), json_value(item)] for key, item in value.items()]
    return describe_value(value) if type(value) is io.BytesIO else _scalar(value)


def _scalar(value: Any) -> Any:
    return to_json(value) if value is None or type(value) in (bool, int, float, str) else repr(value)


def value_text(value: Any, form: str | None = None) -> str:
    """A small value on one line, at most so long as people read."""
    if run_kind(value) is not None:
        return cut(describe_leaf_value(value, _RUN_CHARACTERS, what=f"a {form}" if form else ""), most=_UNLIMITED)
    return cut(_as_text(value))


def long_text(value: Any, form: str | None = None) -> str:
    """The same of a value that stands alone: a few lines of a terminal, and what is left out said at the end."""
    if run_kind(value) is not None:
        what = f"a {form}" if form else ""
        return cut(describe_leaf_value(value, _MOST_ALONE, _MOST_ALONE, what), most=_UNLIMITED)
    text = printable(_as_text(value))
    return text if len(text) <= _MOST_ALONE else f"{text[:_MOST_ALONE]} ... ({len(text):,} characters, --full has them)"


def _as_text(value: Any) -> str:
    if type(value) is int and value.bit_length() >= _MOST_BITS:
        return hex(value)
    return describe_value(value) if type(value) is io.BytesIO else repr(value)


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """The beginning of a text, printable."""
    text = printable(text)
    return text if len(text) <= most else text[: most - 3] + "..."
