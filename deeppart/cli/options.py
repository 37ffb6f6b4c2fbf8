"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from deeppart.access import READING, guarded
from deeppart.part import Signing
from deeppart.storage.key_files import read_key_files

SIGN_KEY_HELP = "A key with which files must be signed (sign_key_file of the job). May be repeated: any of the keys."
F = TypeVar("F", bound=Callable[..., Any])


def _guard(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """While the command runs, no link leads it out of the directory, or directories, that it was given."""
    for directory in value if isinstance(value, tuple) else (value,):
        context.with_resource(guarded(Path(directory), READING))
    return value


def directory_argument(function: F) -> F:
    """DIR, as ``directory``: a persistent directory, of whatever user."""
    argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path), callback=_guard)
    return argument(function)


def _read_keys(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> Signing | None:
    return read_key_files(value)


def sign_key_option(function: F) -> F:
    """``--sign-key-file FILE``, any number of times, as ``signing``: the keys, or None."""
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
    """``--local DIR``, any number of times, as ``local_dirs``.

    Args:
        purpose: the purpose of the directories: the middle of the help text.
    """
    return click.option(
        "--local",
        "local_dirs",
        metavar="DIR",
        type=click.Path(path_type=Path),
        multiple=True,
        callback=_guard,
        help=f"A node-local directory (local_dir on some node) {purpose}. May be repeated.",
    )
