"""Kinds of values for options, and options that would be ignored: each changes something, or is refused."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from deeppart.errors import ConfigError
from deeppart.model.spelling import meant


class FiniteRange(click.FloatRange):
    """A number in a range. Not NaN, which no bound keeps out, and not infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, if it is one."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


class NewFile(click.Path):
    """A file that a command will write. What cannot be written is refused before, not after, what may take minutes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, if there is a directory to write it in."""
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not found.parent.is_dir():
            self.fail(f"there is no directory {str(found.parent)!r} to write {found.name!r} in.", param, ctx)
        if not found.exists() and not os.access(found.parent, os.W_OK):
            self.fail(f"the directory {str(found.parent)!r} is not writable.", param, ctx)
        return found


class OneOf(click.Choice[str]):
    """One of some words; a refusal names the one that was most likely meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What click says, and the word that was meant."""
        close = meant(str(value), self.choices)
        return super().get_invalid_choice_message(value, ctx) + (f" Did you mean {close!r}?" if close else "")


def given(name: str) -> bool:
    """True if an option of the command that runs was given, not left to its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def no_effect(option: str, why: str, todo: str | None = None) -> ConfigError:
    """The refusal of an option that would change nothing."""
    return ConfigError(
        f"{option} would change nothing", expected=why, found=f"{option} is given", where=option,
        todo=todo or "leave it out",
    )  # fmt: skip


def add_options(options: Iterable[Callable[[Any], Any]], function: Any) -> Any:
    """Add options, which the help then shows in this order."""
    for option in reversed(tuple(options)):
        function = option(function)
    return function
