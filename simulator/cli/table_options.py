"""Options of commands that are about a job, and whose results are tables, and pages: nothing random, no picture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from .options import DEFAULT_SEED, SOURCE_OPTIONS, Common
from .parameters import NewFile, add_options

F = TypeVar("F", bound=Callable[..., Any])


def table_options(function: F) -> F:
    """The job and the forms of a table, as one argument ``common``."""

    @functools.wraps(function)
    def wrapped(
        state: str,
        source: Path | None,
        machine: str,
        as_json: bool,
        csv_path: Path | None,
        report_path: Path | None,
        **rest: Any,
    ) -> Any:
        common = Common(as_json, csv_path, report_path, None, state, source, machine, DEFAULT_SEED)
        return function(common, **rest)

    decorators = (
        *SOURCE_OPTIONS,
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option("--csv", "csv_path", type=NewFile(), metavar="FILE", help="Write the table as CSV."),
        click.option("--report", "report_path", type=NewFile(), metavar="FILE", help="Write a page for a browser."),
    )
    return cast("F", add_options(decorators, wrapped))
