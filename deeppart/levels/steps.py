"""Step directories: how they are named, listed, and removed so that a crash leaves a whole checkpoint or none."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from deeppart.errors import StorageError
from deeppart.levels.files import storage_error, sync_directory
from deeppart.levels.spares import is_checkpoint_file, set_aside

MANIFEST_NAME = "manifest"
_STEP = re.compile(r"step-([0-9]{12,19})", re.ASCII)
_TEMPORARY = re.compile(r"\..+\.tmp-[0-9]+", re.ASCII)


def step_directory(root: Path, step: int) -> Path:
    """Directory of a step under a level's root."""
    return root / f"step-{step:012d}"


def list_steps(root: Path) -> dict[int, Path]:
    """Step number -> directory, of everything under ``root`` that is named like a step; {} if there is no root.

    Raises:
        StorageError: the directory cannot be read.
    """
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("cannot list a checkpoint directory", error, root) from error
    steps = {}
    for name in names:
        match = _STEP.fullmatch(name)
        if match and step_directory(root, int(match[1])).name == name:
            steps[int(match[1])] = root / name
    return steps


def remove_steps(root: Path, steps: Collection[int], spares: Path | None = None) -> None:
    """Remove step directories; see :func:`remove_step`.

    Args:
        spares: where the files of the newest of them are kept to be written over; None to remove them all.

    Raises:
        StorageError: a removal was refused; the others are still tried.
    """
    first: StorageError | None = None
    if spares is not None and steps:
        set_aside(step_directory(root, max(steps)), spares)
    for step in sorted(steps):
        try:
            remove_step(step_directory(root, step))
        except StorageError as error:
            first = first or error
    if first is not None:
        raise first


def remove_step(path: Path) -> None:
    """Remove a step directory: the manifest first, so that it stops being a checkpoint before it stops being whole.

    Only files that this library names are removed; others, and a directory holding them, stay.

    Raises:
        StorageError: the operating system refused.
    """
    try:
        names = os.listdir(path)
        if MANIFEST_NAME in names:
            os.unlink(path / MANIFEST_NAME)
            sync_directory(path)
        for name in names:
            if is_checkpoint_file(name) or _TEMPORARY.fullmatch(name):
                os.unlink(path / name)
        if not os.listdir(path):
            os.rmdir(path)
            sync_directory(path.parent)
    except (FileNotFoundError, NotADirectoryError):  # gone, or a file that somebody has named like a step
        return
    except OSError as error:
        raise storage_error("cannot remove an old checkpoint", error, path) from error
