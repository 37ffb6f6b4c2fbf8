"""Finds a committed step in a directory that a job may be writing to, and opens its parts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deeppart import access
from deeppart.config import check_step, refuse_url
from deeppart.errors import DeeppartWarning, RestoreError, StorageError, warn_caller
from deeppart.model import Manifest, PartRecord
from deeppart.offline.inspect.listing import require_directory
from deeppart.part import PartReader, Signing, StoredBytes
from deeppart.recovery import suspect_lines, warn_suspect
from deeppart.state.document import RankDocument, Structure, decode_meta, decode_structure
from deeppart.state.pieces import check_places
from deeppart.storage import MOST_LOOKS, PosixStore, StoredStep, committed_steps, read_steps

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The committed step that is read.

    Attributes:
        step: the step.
        passed_over: lines about newer steps that cannot be used.
        suspect: lines about leaves that may have differed between ranks.
    """

    step: StoredStep
    passed_over: tuple[str, ...] = ()
    suspect: tuple[str, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The manifest of the step."""
        return self.step.manifest

    @property
    def remarks(self) -> tuple[str, ...]:
        """All lines."""
        return self.passed_over + self.suspect

    def warn(self) -> None:
        """Warn the caller with these lines."""
        number = self.step.key.step
        if self.passed_over:
            warn_caller(f"step {number} is read; {'; '.join(self.passed_over)}", DeeppartWarning)
        warn_suspect(number, self.suspect)


def with_checkpoint(root: Path, step: int | None, use: Callable[[Chosen], T], signing: Signing | None) -> T:
    """Call ``use`` with a committed step; if a job removes the newest one in the meantime, with the newest then."""
    refuse_url("the checkpoint directory", root)
    step = None if step is None else check_step(step, "load(path, step)")
    root = access.below_root(root)
    for look in range(MOST_LOOKS):
        chosen = find_step(root, step, signing)
        try:
            return use(chosen)
        except StorageError as error:
            # a running job may have committed the next step and removed this one
            retired = error.errno == errno.ENOENT and chosen.step.is_retired()
            if step is not None or not retired or look == MOST_LOOKS - 1:
                raise
    raise AssertionError("the last look returns or raises")


def find_step(root: Path, step: int | None, signing: Signing | None) -> Chosen:
    """Find a committed step, or the newest one with a sound manifest. Of several commits of one step, the last."""
    require_directory(root)
    store = PosixStore(root)
    found = read_steps(store, signing, step)
    if found.committed:
        newest = found.committed[-1]
        newer = [each for each in found.unusable if step is None and each.key.step > newest.key.step]
        passed_over = [f"step {each.key.step} is newer, and cannot be used: {each.reason}" for each in newer]
        return Chosen(newest, tuple(passed_over), tuple(suspect_lines(store, newest.manifest.attempt)))
    if step is not None and found.unusable:
        assert found.unusable[-1].error is not None
        raise found.unusable[-1].error
    if step is not None:
        committed = sorted({key.step for key in committed_steps(store)})
        raise RestoreError(
            f"step {step} is not a committed checkpoint",
            found=f"committed steps: {committed[-8:] if committed else 'none'}",
            where=str(root.absolute()),
            todo="`deeppart ls DIR` lists all steps, with what is wrong with those that are not complete",
        )
    reasons = "; ".join(f"step {each.key.step}: {each.reason}" for each in found.others)
    raise RestoreError(
        "there is no committed checkpoint",
        found=reasons or "no step directory",
        where=str(root.absolute()),
        todo="`deeppart explain DIR --local LOCAL_DIR` says whether a step can be restored from the nodes"
        if reasons
        else "wait for the job's first checkpoint, or give the directory of another job",
    )


@dataclass(frozen=True, slots=True)
class OpenPart:
    """An open part whose header, footer, index and document are sound, and are those in the manifest.

    Attributes:
        record: the entry in the manifest.
        source: the open file.
        reader: index, spans and chunks.
        own: the per-rank leaves and values of its rank.
    """

    record: PartRecord
    source: StoredBytes
    reader: PartReader
    own: RankDocument

    def check_places(self, structure: Structure, where: str) -> None:
        """Raise if the part's leaves do not fit the structure of its rank's state."""
        reader = self.reader
        check_places(structure, self.own.types, reader.spans, reader.raw_starts, reader.marked_per_rank, where)


@contextmanager
def open_part(step: StoredStep, rank: int) -> Iterator[OpenPart]:
    """Open the part of a rank."""
    with step.open_part(rank) as (source, reader):
        record = step.manifest.parts[rank]
        own = decode_meta(reader.meta, f"{step.where}/{record.file}", with_structure=False)
        yield OpenPart(record, source, reader, own)


def structure_of(step: StoredStep) -> Structure:
    """The structure of the saved state."""
    return decode_structure(step.manifest.structure, step.where)
