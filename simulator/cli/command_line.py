"""The command line that made a page, so that it can be made once more."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from .parameters import given

#: Options that say where results go, and nothing about them.
_PLACES = frozenset({"--report", "--csv", "--png", "--json"})


def command_line() -> str:
    """What was given to the command that runs, without the names of files that it writes."""
    context = click.get_current_context()
    words = [*context.command_path.split()]
    for option in context.command.params:
        if isinstance(option, click.Option) and option.name and given(option.name):
            words += _words(option, context.params[option.name])
    return shlex.join(words)


def _words(option: click.Option, value: Any) -> Iterator[str]:
    names = option.secondary_opts if value is False and option.secondary_opts else option.opts
    name = names[0]
    if name in _PLACES:
        return
    if option.is_flag:
        yield name
        return
    for each in value if option.multiple else (value,):
        yield name
        yield f"{each:.15g}" if isinstance(each, float) else str(each)
