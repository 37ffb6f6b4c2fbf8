"""Steps in a store: naming, listing, and removal that leaves a complete checkpoint or none after a crash.

A name contains the attempt: ``step-000000000100-<session>-000007``. So no two sessions ever write under one name, and a
late rank of an older job cannot affect the files of a newer one (docs/decisions/0010-fencing.md).
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
#: How often to read again because a running job has removed what was listed.
MOST_LOOKS = 20


def manifest_key(key: StepKey) -> str:
    """The key of a step's manifest."""
    return f"{step_name(key)}/{MANIFEST_NAME}"


def is_temporary_name(name: str) -> bool:
    """True for the name of a file that is being written, or whose writer has died."""
    return _TEMPORARY.fullmatch(name) is not None


def is_checkpoint_file(name: str) -> bool:
    """True if a name is that of a part or parity file."""
    return parse_part_file_name(name) is not None or is_parity_file_name(name)


def list_steps(store: Store) -> list[StepKey]:
    """All names of steps in ascending order; empty if the store does not exist."""
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
    """Remove a step's manifest durably, if it has one: it is no longer a checkpoint then."""
    place = step_name(key)
    with _removing(store, place):
        if MANIFEST_NAME in store.list(place):
            store.delete(place, [MANIFEST_NAME])


def remove_step(store: Store, key: StepKey, needed: Container[str] = ()) -> bool:
    """Remove a step: the manifest first, so that an incomplete step is never a checkpoint.

    ``needed``: names of parts that stay because other steps refer to them. Files with other names than the library's
    stay, and so does their directory. Returns true if no needed part is left.
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
    """Ignore a step that does not exist, or is not a directory."""
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
    """True if a file or step directory no longer exists; False if that is unknown."""
    try:
        access.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # for example a file instead of the directory, which no job creates
        return False
    return False
