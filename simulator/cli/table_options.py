"""Options of commands that are about a job, and whose results are tables alone: nothing random, no picture, no page."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from .options import DEFAULT_SEED, SOURCE_OPTIONS, Common
from .parameters import add_options

F = TypeVar("F", bound=Callable[..., Any])


def table_options(function: F) -> F:
    """The job and the forms of a table, as one argument ``common``."""

    @functools.wraps(function)
    def wrapped(
        state: str, source: Path | None, machine: str, as_json: bool, csv_path: Path | None, **rest: Any
    ) -> Any:
        common = Common(as_json, csv_path, None, None, state=state, source=source, machine=machine, seed=DEFAULT_SEED)
        return function(common, **rest)

    decorators = (
        *SOURCE_OPTIONS,
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option(
            "--csv", "csv_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as CSV."
        ),
    )
    return cast("F", add_options(decorators, wrapped))
