"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def local_option(purpose: str) -> Callable[[F], F]:
    """``--local DIR``, any number of times, as ``local_dirs``.

    Args:
        purpose: what the directories are named for: the middle of the help text.
    """
    return click.option(
        "--local",
        "local_dirs",
        metavar="DIR",
        type=click.Path(path_type=Path),
        multiple=True,
        help=f"A node-local directory (local_dir on some node) {purpose}. May be repeated.",
    )
