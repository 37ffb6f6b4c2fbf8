"""Records of suspect steps in a persistent directory: files that are created once, read by everyone, never replaced.

Nor does any job remove one: a node that is away, or that refused to remove a step, may still have what it names.

A step is suspect for a leaf when ranks may have held other bytes of it than those that were saved for all: from the
checkpoint after the last at which all of it was compared, to the one before it was found to differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.errors import FormatError, StorageError
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.part import MAX_SUSPECT_BYTES, decode_suspicion, encode_suspicion
from deeppart.storage.small_files import create_file, read_file

_NAME = re.compile(r"suspect-([0-9a-f]{32})-([0-9]{6,19})", re.ASCII)
#: Records read at most, the latest by name; a session makes one whenever leaves come to differ, which is rare.
_MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class Suspicions:
    """All records of a directory.

    Attributes:
        records: by session and sequence.
        problems: lines about records that cannot be read: what they name is not known.
    """

    records: tuple[Suspicion, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, attempt: Attempt) -> tuple[SuspectLeaf, ...]:
        """The leaves for which a checkpoint is suspect, each once."""
        found = {leaf.path: leaf for record in self.records for leaf in record.leaves_of(attempt)}
        return tuple(found[path] for path in sorted(found))


def write_suspicion(root: Path, suspicion: Suspicion) -> None:
    """Put a record into a persistent directory, durably."""
    create_file(root / _name(suspicion), encode_suspicion(suspicion))


def read_suspicions(root: Path) -> Suspicions:
    """All records of a persistent directory."""
    try:
        names = sorted(name for name in access.names_in(root) if _NAME.fullmatch(name))
    except OSError as error:
        return Suspicions(problems=(f"records of suspect steps cannot be looked for: {error.strerror}",))
    records, problems = [], []
    if len(names) > _MOST_RECORDS:
        problems.append(f"{len(names)} records of suspect steps: only {_MOST_RECORDS} of them are read")
    for name in names[-_MOST_RECORDS:]:
        path = root / name
        try:
            record = decode_suspicion(read_file(path, MAX_SUSPECT_BYTES), where=str(path))
            if _name(record) == name:
                records.append(record)
            else:
                problems.append(f"{name}: is the record {_name(record)}")
        except FileNotFoundError:
            continue
        except (FormatError, StorageError) as error:
            problems.append(f"{name}: {error.summary}" + (f": {error.found}" if error.found else ""))
    return Suspicions(tuple(records), tuple(problems))


def _name(suspicion: Suspicion) -> str:
    return f"suspect-{suspicion.session}-{suspicion.sequence:06d}"
