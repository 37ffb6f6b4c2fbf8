"""Steps in a store: how they are named, listed, and removed so that a crash leaves a whole checkpoint or none.

The name carries the attempt: ``step-000000000100-<session>-000007``. So no two sessions ever write under one name, and
whatever a rank of an older job does when it wakes up late, it does in places of its own
(docs/decisions/0010-fencing.md).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Collection, Container, Iterator
from pathlib import Path

from deeppart import access
from deeppart.errors import MissingError, StorageError
from deeppart.model import StepKey
from deeppart.part import is_parity_file_name, parse_part_file_name, parse_step_name, step_name
from deeppart.storage.store import Store

MANIFEST_NAME = "manifest"
_TEMPORARY = re.compile(r"\..+\.tmp-[0-9]+(-[0-9a-f]+)?", re.ASCII)
#: How often we look again because a running job has removed what it was about to read.
MOST_LOOKS = 20


def manifest_key(key: StepKey) -> str:
    """The key of the manifest of a step."""
    return f"{step_name(key)}/{MANIFEST_NAME}"


def is_temporary_name(name: str) -> bool:
    """True for the name of a file that is being written, or whose writer has died."""
    return _TEMPORARY.fullmatch(name) is not None


def is_checkpoint_file(name: str) -> bool:
    """True if a name is that of a part or of parity."""
    return parse_part_file_name(name) is not None or is_parity_file_name(name)


def list_steps(store: Store) -> list[StepKey]:
    """Everything that is named like a step, ascending; [] if there is no such store."""
    with contextlib.suppress(MissingError):
        return sorted(key for key in map(parse_step_name, store.list()) if key is not None)
    return []


def remove_steps(store: Store, keys: Collection[StepKey]) -> None:
    """Remove steps; see :func:`remove_step`."""
    first: StorageError | None = None
    for key in sorted(keys):
        try:
            remove_step(store, key)
        except StorageError as error:
            first = first or error
    if first is not None:
        raise first


def remove_manifest(store: Store, key: StepKey) -> None:
    """Durably make a step no checkpoint any more, if it is one."""
    place = step_name(key)
    with _removing(store, place):
        if MANIFEST_NAME in store.list(place):
            store.delete(place, [MANIFEST_NAME])


def remove_step(store: Store, key: StepKey, needed: Container[str] = ()) -> bool:
    """Remove a step: the manifest first, so that it stops being a checkpoint before it stops being whole.

    ``needed`` are names of parts that stay, since other steps refer to them. Only what this library names is removed;
    the rest, and the place that has it, stay. Returns true if no needed part is left.
    """
    place = step_name(key)
    remove_manifest(store, key)
    with _removing(store, place):
        ours = [name for name in store.list(place) if is_checkpoint_file(name) or is_temporary_name(name)]
        going = [name for name in ours if name not in needed]
        if going or not ours:
            store.delete(place, going)
        return len(going) == len(ours)
    return True


@contextlib.contextmanager
def _removing(store: Store, place: str) -> Iterator[None]:
    """What is not there, or is a file that somebody has named like a step, is left alone."""
    try:
        yield
    except MissingError:
        return
    except StorageError as error:
        if error.errno == errno.ENOTDIR:
            return
        error.summary, error.where = "cannot remove an old checkpoint", store.where(place)
        raise


def is_gone(path: Path) -> bool:
    """True if a file on a node, or a step directory, is gone; False if that cannot be found out."""
    try:
        access.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # such as a file in place of the directory, which no job puts there
        return False
    return False
