"""Small records of a store beside its steps: suspect steps, and a request to halt.

A step is suspect for a leaf if ranks may have held other bytes of the leaf than those saved for all of them: this holds
from the checkpoint after the last complete comparison to the one before the difference was found. These records are
created once and never replaced. No job removes one either: a node that is away, or that failed to remove a step, may
still have the step.

A halt asks one run, by its name, to end after a checkpoint; other runs ignore it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from deeppart._times import seconds_of
from deeppart.errors import UNUSABLE, FormatError, MissingError, StorageError
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.part import decode_suspicion, encode_suspicion, parse_json
from deeppart.storage.store import Store

_NAME = re.compile(r"suspect-([0-9a-f]{32})-([0-9]{6,19})", re.ASCII)
#: Most records to read, the last ones by name. A session makes one when leaves start to differ, which is rare.
_MOST_RECORDS = 10_000
#: Limit for the size of a record.
_MOST_BYTES = 64 << 20
_HALT_NAME, _HALT_FORMAT, _HALT_VERSION = "deeppart-halt.json", "deeppart-halt", 1


@dataclass(frozen=True, slots=True)
class Suspicions:
    """The records of suspect steps in a directory.

    Attributes:
        records: by session and sequence.
        problems: lines about records that cannot be read.
    """

    records: tuple[Suspicion, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, attempt: Attempt) -> tuple[SuspectLeaf, ...]:
        """The leaves for which a checkpoint is suspect, without duplicates."""
        found = {leaf.path: leaf for record in self.records for leaf in record.leaves_of(attempt)}
        return tuple(found[path] for path in sorted(found))

    @staticmethod
    def write(store: Store, suspicion: Suspicion) -> None:
        """Create a record durably."""
        store.put_new(_name(suspicion), encode_suspicion(suspicion))

    @classmethod
    def read(cls, store: Store) -> Suspicions:
        """Read all records."""
        try:
            names = sorted(name for name in store.list() if _NAME.fullmatch(name))
        except StorageError as error:
            return cls(problems=(f"records of suspect steps cannot be looked for: {error.found}",))
        records, problems = [], []
        if len(names) > _MOST_RECORDS:
            problems.append(f"{len(names)} records of suspect steps: only {_MOST_RECORDS} of them are read")
        for name in names[-_MOST_RECORDS:]:
            try:
                record = decode_suspicion(store.get(name, _MOST_BYTES), where=store.where(name))
                if _name(record) == name:
                    records.append(record)
                else:
                    problems.append(f"{name}: is the record {_name(record)}")
            except MissingError:
                continue
            except (FormatError, StorageError) as error:
                problems.append(f"{name}: {error.summary}" + (f": {error.found}" if error.found else ""))
        return cls(tuple(records), tuple(problems))


def _name(suspicion: Suspicion) -> str:
    return f"suspect-{suspicion.session}-{suspicion.sequence:06d}"


@dataclass(frozen=True, slots=True)
class Halt:
    """A request to end a job. Fields: docs/commands.md, halt.

    Attributes:
        run: the name of the run to end.
        after: number of further calls of ``checkpoint()`` before the last one.
        before: deadline in UTC, ISO 8601; None for as soon as possible.
    """

    run: str
    after: int = 0
    before: str | None = None

    def write(self, store: Store) -> None:
        """Write the request, which replaces an earlier one."""
        document = {"format": _HALT_FORMAT, "version": _HALT_VERSION, **asdict(self)}
        store.replace(_HALT_NAME, json.dumps(document).encode() + b"\n")

    @classmethod
    def read(cls, store: Store) -> Halt | None:
        """Read the request; None if there is none, or it is invalid."""
        try:
            document = parse_json(store.get(_HALT_NAME, _MOST_BYTES))
            known = document.pop("format"), document.pop("version")
            halt = cls(**document)
            if halt.before is not None:
                seconds_of(halt.before)
            return halt if known == (_HALT_FORMAT, _HALT_VERSION) and type(halt.after) is int else None
        except UNUSABLE:
            return None

    @staticmethod
    def remove(store: Store) -> None:
        """Withdraw the request."""
        store.delete("", [_HALT_NAME], durable=False)
