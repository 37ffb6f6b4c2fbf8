"""Files of a node that lie in other files' places get their own names back, before anything is written there.

Somebody has moved or copied files by hand, or nodes were put together wrongly. Such a file is read as what it is, and
may be the only one of its part; but its place belongs to another one, whose redundancy is going to be rebuilt there.
So it is renamed, in one step and without anything being replaced: to its name if that is free, or in exchange with what
has that name and is not known to belong there. Whatever happens in between, each file has a name that is looked at.

What cannot be put right so (the file system does not exchange names) stays where it is, and
:mod:`deeppart.repair.heal` writes nothing over it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from deeppart import access
from deeppart.part import parity_file_name, part_file_name
from deeppart.storage.exclusive import exchange_names, rename_new
from deeppart.storage.node import NodeContents
from deeppart.storage.steps import step_directory


def straighten(found: NodeContents) -> list[str]:
    """Rename sound files that lie in wrong places, into the directory of their step where there is one."""
    wanted, settled = _places(found)
    directories = {path.parent for path in (*wanted, *wanted.values())}
    lines: list[str] = []
    before = -1
    while len(lines) > before:  # what could not be exchanged may find its name free after others have gone
        before = len(lines)
        for path in list(wanted):
            _put_right(path, wanted, settled, lines)
    for directory in directories if lines else ():
        with contextlib.suppress(OSError):
            access.sync_directory(directory)
    return lines


def _put_right(path: Path, wanted: dict[Path, Path], settled: set[Path], lines: list[str]) -> None:
    """Rename a file, and what comes to lie in its place, as long as that belongs somewhere else."""
    while path in wanted and _rename(path, wanted[path], settled):
        own = wanted.pop(path)
        settled.add(own)
        lines.append(f"{path}: was in the wrong place: renamed to {own}")
        if own in wanted:  # it lies at the path now
            wanted[path] = wanted.pop(own)
            if wanted[path] == path:
                del wanted[path]
                settled.add(path)
                lines.append(f"{own}: was in the wrong place: renamed to {path}")


def _places(found: NodeContents) -> tuple[dict[Path, Path], set[Path]]:
    """(misplaced file -> its place, where its step has a directory), and the files that lie in their places."""
    wanted, settled = dict[Path, Path](), set[Path]()
    parts = [(each, part_file_name(each.rank, each.attempt.world_size)) for each in found.parts]
    files = [(each.path, each.misplaced, each.attempt, name) for each, name in parts]
    files += [
        (each.path, each.misplaced, each.identity.attempt, parity_file_name(each.identity)) for each in found.parity
    ]
    for where, misplaced, attempt, name in files:
        path = Path(where)
        own = step_directory(path.parent.parent, attempt.key) / name
        if not misplaced:
            settled.add(path)
        elif own.parent == path.parent or _is_directory_of(own.parent, path.parent):
            wanted[path] = own
    return wanted, settled


def _is_directory_of(directory: Path, other: Path) -> bool:
    """True if a directory exists and has the same owner as another one."""
    try:
        return access.lstat(directory).st_uid == access.lstat(other).st_uid
    except OSError:
        return False


def _rename(path: Path, own: Path, settled: Collection[Path]) -> bool:
    try:
        rename_new(path, own)
        return True
    except FileExistsError:
        if own in settled:
            return False
    except OSError:
        return False
    try:
        exchange_names(path, own)
    except OSError:
        return False
    return True
