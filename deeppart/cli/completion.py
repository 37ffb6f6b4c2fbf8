"""What the shell offers for arguments (docs/commands.md, completion): directories, and the steps in one of them.

A step is offered from the names in its directory alone; no file is read. What cannot be listed is not offered.
"""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from deeppart.access import READING, guarded
from deeppart.errors import DeeppartError
from deeppart.storage.steps import list_steps


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
        with guarded(directory, READING):
            return [str(step) for step in sorted({key.step for key in list_steps(directory)})]
    except (DeeppartError, OSError, ValueError):
        return []
