"""The step directories of a persistent directory: which are whole, or why they are not.

Cheap: manifests, and the lengths, headers, footers and indexes of parts are read; no chunk is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.errors import FormatError, NewerFormatError, SignatureError, StorageError
from deeppart.model import Manifest, StepKey
from deeppart.part import FileSource, SectionPath, Signing, parse_node_file_name, parse_part_file_name, read_table
from deeppart.storage.manifests import UNFINISHED, file_length, part_problem, read_manifest
from deeppart.storage.steps import MOST_LOOKS, is_gone, list_steps, step_directory, step_is_retired

#: Every part that the manifest names is on the persistent level.
COMPLETE = "complete"
#: Never committed: no manifest.
UNFINISHED_STATE = "unfinished"
#: Committed, but the manifest is damaged, or a part is missing or is not the one that it names.
DAMAGED = "damaged"
#: Written by a newer version of the library.
NEWER = "newer"


@dataclass(frozen=True, slots=True)
class PersistentStep:
    """A step directory on the persistent level.

    Attributes:
        key: from its name.
        state: COMPLETE, UNFINISHED_STATE, DAMAGED or NEWER.
        reasons: the reasons why it is not complete.
        manifest: None where there is no sound one.
        parts: ranks whose part is there and is the right one; of an unfinished step, ranks whose file is there.
        nbytes: length of all part files in the directory.
        refused: true if the only fault of the manifest is that it is not signed with one of the keys.
    """

    key: StepKey
    state: str
    reasons: tuple[str, ...]
    manifest: Manifest | None
    parts: tuple[int, ...]
    nbytes: int
    refused: bool = False

    @property
    def step(self) -> int:
        """Its number."""
        return self.key.step

    @property
    def is_committed(self) -> bool:
        """True if it has a manifest, sound or not."""
        return self.state != UNFINISHED_STATE


def examine(root: Path, signing: Signing | None = None) -> list[PersistentStep]:
    """Every step directory of a persistent directory, by ascending step, less what is retired meanwhile."""
    found: dict[StepKey, PersistentStep | None] = {}
    for _ in range(MOST_LOOKS):
        new = list_steps(root).keys() - found.keys()
        looked = {key: examine_step(root, key, signing) for key in sorted(new)}
        found |= looked
        if None not in looked.values():  # otherwise the job has committed newer ones, and there may be no others
            break
    return sorted((entry for entry in found.values() if entry is not None), key=_order)


def _order(entry: PersistentStep) -> tuple[int, bool, str, int]:
    """By step; of several at one step unfinished ones first, then by the time of the commit."""
    return (entry.step, entry.is_committed, entry.manifest.created if entry.manifest else "", entry.key.sequence)


def examine_step(root: Path, key: StepKey, signing: Signing | None = None) -> PersistentStep | None:
    """One step directory: its manifest is read, and every part is looked at (:mod:`deeppart.storage.manifests`)."""
    directory = step_directory(root, key)
    entry = _look_at(root, directory, key, signing)
    if entry.state == UNFINISHED_STATE:
        return None if is_gone(directory) else entry
    return None if entry.state != COMPLETE and step_is_retired(directory) else entry


def _look_at(root: Path, directory: Path, key: StepKey, signing: Signing | None) -> PersistentStep:
    try:
        manifest = read_manifest(root, key, signing)
    except FileNotFoundError:
        ranks, nbytes = _part_files(directory)
        return PersistentStep(key, UNFINISHED_STATE, (UNFINISHED,), None, ranks, nbytes)
    except NewerFormatError as error:
        return PersistentStep(key, NEWER, (error.summary,), None, *_part_files(directory))
    except (FormatError, StorageError) as error:
        reason = f"manifest: {error.summary}" + (f": {error.found}" if error.found else "")
        refused = isinstance(error, SignatureError)
        return PersistentStep(key, DAMAGED, (reason,), None, *_part_files(directory), refused=refused)
    parts, reasons, nbytes = [], [], 0
    for record in manifest.parts:
        problem, length = part_problem(directory, manifest, record, signing)
        nbytes += length
        if problem is None:
            parts.append(record.rank)
        else:
            reasons.append(f"part {record.rank} {problem}")
    return PersistentStep(key, DAMAGED if reasons else COMPLETE, tuple(reasons), manifest, tuple(parts), nbytes)


def _part_files(directory: Path) -> tuple[tuple[int, ...], int]:
    """(ranks, bytes) of the part files, and node files, in a directory without a sound manifest."""
    ranks, nbytes = set(), 0
    try:
        names = access.names_in(directory)
    except OSError:
        return (), 0
    for name in names:
        if (parsed := parse_part_file_name(name)) is not None:
            found, length = file_length(directory / name)
            nbytes += length
            if found is None:
                ranks.add(parsed[0])
        elif (node := parse_node_file_name(name)) is not None:
            ranks |= _sections(directory / name, *node)
            nbytes += file_length(directory / name)[1]
    return tuple(sorted(ranks)), nbytes


def _sections(path: Path, first: int, world_size: int) -> set[int]:
    """Ranks of the sections of a node file; none if it is damaged."""
    try:
        with FileSource(path) as source:
            table = read_table(source, SectionPath(str(path), first, first, world_size))
    except (FormatError, StorageError):
        return set()
    return {section.rank for section in table.sections}
