"""Options that several commands share, and what the shell offers for them (docs/commands.md, completion).

Steps are completed from the names of their directories; no file is read. Errors lead to no completions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from deeppart.access import Root
from deeppart.config import refuse_url
from deeppart.errors import DeeppartError
from deeppart.model import read_seconds
from deeppart.part import Signing, read_key_files
from deeppart.storage import PosixStore, list_steps

SIGN_KEY_HELP = "A key with which files must be signed (sign_key_file of the job). May be repeated: any of the keys."
_AT_STEP = re.compile(r"(.+)@([0-9]{1,19})", re.ASCII | re.DOTALL)
F = TypeVar("F", bound=Callable[..., Any])


def local_path(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Callback of arguments that name a file or directory: refuses URLs."""
    if value is not None and not context.resilient_parsing:
        refuse_url(parameter.get_error_hint(context), value)
    return value


def _root(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Callback of directory arguments: paths below the result cannot leave the directory through a link."""
    if isinstance(value, tuple):
        return tuple(_root(context, parameter, each) for each in value)
    local_path(context, parameter, Path(value))
    return Root(Path(value)).path


def directory_argument(function: F) -> F:
    """DIR, as ``directory``: a persistent directory of any user."""
    argument = click.argument(
        "directory",
        metavar="DIR",
        type=click.Path(path_type=Path),
        callback=_root,
        shell_complete=complete_directory,
    )
    return argument(function)


class Place(NamedTuple):
    """A checkpoint named by an argument.

    Attributes:
        directory: a persistent directory.
        step: None for the newest.
    """

    directory: Path
    step: int | None


def read_place(text: str) -> Place:
    """Parse ``DIR`` or ``DIR@STEP``; an existing directory whose name contains the ``@`` takes precedence."""
    match = _AT_STEP.fullmatch(text)
    if match is None or Path(text).is_dir():
        return Place(Path(text), None)
    return Place(Path(match[1]), int(match[2]))


def _root_place(context: click.Context, parameter: click.Parameter, value: str) -> Place:
    place = read_place(value)
    return Place(_root(context, parameter, place.directory), place.step)


def place_argument(name: str, metavar: str) -> Callable[[F], F]:
    """``DIR[@STEP]``, as a :class:`Place`."""
    return click.argument(name, metavar=metavar, callback=_root_place, shell_complete=complete_place)


def step_option(what: str) -> Callable[[F], F]:
    """``--step STEP``, as ``step``."""
    return click.option("--step", type=click.IntRange(min=0), help=what, shell_complete=complete_step)


def keys_option(function: F) -> F:
    """``--keys GLOB``, repeatable, as ``keys``."""
    what = "Only paths that match GLOB: model, '*.bias'. May be repeated."
    return click.option("--keys", metavar="GLOB", multiple=True, help=what)(function)


def rank_option(what: str, default: int | None = None) -> Callable[[F], F]:
    """``--rank R``, as ``rank``."""
    return click.option("--rank", metavar="R", type=click.IntRange(min=0), default=default, help=what)


def _read_keys(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> Signing | None:
    return None if context.resilient_parsing else read_key_files(value)


def sign_key_option(function: F) -> F:
    """``--sign-key-file FILE``, repeatable, as ``signing``: the keys, or None."""
    option = click.option(
        "--sign-key-file",
        "signing",
        metavar="FILE",
        type=click.Path(path_type=Path),
        multiple=True,
        callback=_read_keys,
        help=SIGN_KEY_HELP,
    )
    return option(function)


def local_option(purpose: str) -> Callable[[F], F]:
    """``--local DIR``, repeatable, as ``local_dirs``."""
    return click.option(
        "--local",
        "local_dirs",
        metavar="DIR",
        type=click.Path(path_type=Path),
        multiple=True,
        callback=_root,
        shell_complete=complete_directory,
        help=f"A node-local directory (local_dir on some node) {purpose}. May be repeated.",
    )


def read_moment(text: str) -> float:
    """Parse a time such as ``2026-11-30T18:00``, or a duration from now such as ``8h``, to seconds since 1970."""
    with suppress(ValueError):
        return time.time() + read_seconds(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: a time, such as 2026-11-30T18:00, or from now on, such as 8h") from error


def complete_directory(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own completion of directories."""
    return [CompletionItem(incomplete, type="dir")]


def complete_step(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The steps in DIR, if that stands before."""
    # click leaves the arguments where they are if an option, the one that is completed, has no value yet
    found = context.params.get("directory") or next(iter(context.args), None)
    return (
        [] if found is None else [CompletionItem(step) for step in _steps(Path(found)) if step.startswith(incomplete)]
    )


def complete_place(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories; behind an ``@``, the steps in one."""
    directory, at, begun = incomplete.rpartition("@")
    steps = _steps(Path(directory)) if directory and at else []
    found = [CompletionItem(f"{directory}@{step}") for step in steps if step.startswith(begun)]
    return found or complete_directory(context, parameter, incomplete)


def _steps(directory: Path) -> list[str]:
    try:
        return [str(step) for step in sorted({key.step for key in list_steps(PosixStore(Root(directory).path))})]
    except (DeeppartError, OSError, ValueError):
        return []
