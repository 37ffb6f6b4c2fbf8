"""Step directories: how they are named, listed, and removed so that a crash leaves a whole checkpoint or none.

The name carries the attempt: ``step-000000000100-<session>-000007``. So no two sessions ever write under one name, and
whatever a rank of an older job does when it wakes up late, it does in directories of its own
(docs/decisions/0010-fencing.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import StorageError
from deeppart.model import StepKey
from deeppart.part import is_parity_file_name, parse_base_file_name, parse_part_file_name

MANIFEST_NAME = "manifest"
_STEP = re.compile(r"step-([0-9]{12,19})-([0-9a-f]{32})-([0-9]{6,19})", re.ASCII)
_TEMPORARY = re.compile(r"\..+\.tmp-[0-9]+(-[0-9a-f]+)?", re.ASCII)
#: How often we look again because a running job has removed what it was about to read.
MOST_LOOKS = 20


def step_directory(root: Path, key: StepKey) -> Path:
    """The directory of one attempt at a step, under a level's root."""
    return root / step_directory_name(key)


def step_directory_name(key: StepKey) -> str:
    """``step-000000000100-<session, 32 hex digits>-000007``."""
    return f"step-{key.step:012d}-{key.session}-{key.sequence:06d}"


def parse_step_directory_name(name: str) -> StepKey | None:
    """Inverse of :func:`step_directory_name`; None for any other name."""
    match = _STEP.fullmatch(name)
    if match is None:
        return None
    key = StepKey(int(match[1]), match[2], int(match[3]))
    return key if step_directory_name(key) == name else None


def is_temporary_name(name: str) -> bool:
    """True for the name of a file that is being written, or whose writer has died."""
    return _TEMPORARY.fullmatch(name) is not None


def is_checkpoint_file(name: str) -> bool:
    """True if a name is that of a part, a base or parity."""
    parsed = parse_part_file_name(name) or parse_base_file_name(name)
    return parsed is not None or is_parity_file_name(name)


def in_order_of_removal(names: Iterable[str]) -> list[str]:
    """Names of files of a step, what refers to others before these: a part without its base is damage, then."""
    return sorted(names, key=lambda name: parse_base_file_name(name) is not None)


def list_steps(root: Path) -> dict[StepKey, Path]:
    """Everything under ``root`` that is named like a step, by ascending step; {} if there is no root.

    What is a link, or a file, is never gone into.
    """
    try:
        names = access.names_in(root)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("cannot list a checkpoint directory", error, root) from error
    keys = sorted(key for key in map(parse_step_directory_name, names) if key is not None)
    return {key: step_directory(root, key) for key in keys}


def remove_steps(root: Path, keys: Collection[StepKey]) -> None:
    """Remove step directories; see :func:`remove_step`."""
    first: StorageError | None = None
    for key in sorted(keys):
        try:
            remove_step(step_directory(root, key))
        except StorageError as error:
            first = first or error
    if first is not None:
        raise first


def remove_step(path: Path) -> None:
    """Remove a step directory: the manifest first, so that it stops being a checkpoint before it stops being whole.

    Parts go before the bases that they refer to: who looks on meanwhile can tell this from damage
    (:mod:`deeppart.storage.steps`). Only files that this library names are removed; others, and a directory holding
    them, stay.
    """
    try:
        with access.open_folder(path) as folder:
            names = folder.names()
            if MANIFEST_NAME in names:
                folder.remove(MANIFEST_NAME)
                folder.sync()
            for name in in_order_of_removal(names):
                if is_checkpoint_file(name) or is_temporary_name(name):
                    folder.remove(name)
            is_empty = not folder.names()
        if is_empty:
            with access.open_folder(path.parent) as above:
                above.remove_directory(path.name)
                above.sync()
    except (FileNotFoundError, NotADirectoryError):  # gone, or a file that somebody has named like a step
        return
    except OSError as error:
        raise storage_error("cannot remove an old checkpoint", error, path) from error


def step_is_retired(directory: Path) -> bool:
    """True if a committed step is being retired: its manifest is gone."""
    return is_gone(directory / MANIFEST_NAME)


def is_gone(path: Path) -> bool:
    """True if a file on a node, or a step directory, is gone; False if that cannot be found out."""
    try:
        access.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # such as a file in place of the directory, which no job puts there
        return False
    return False
