"""The steps of a store: which there are, which are committed, which parts they need, and whether those are whole.

Restoring, keeping, inspecting and repairing ask here. A step without a manifest is not a checkpoint. Parts are looked
at by length, header, footer and index, without their chunks.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from deeppart.errors import (
    CorruptFileError,
    FormatError,
    MissingError,
    NewerFormatError,
    StorageError,
    lacks_resources,
    one_line,
)
from deeppart.model import Manifest, StepKey
from deeppart.part import (
    PartReader,
    Signing,
    StoredBytes,
    decode_manifest,
    parse_step_name,
    part_file_name,
    step_name,
)
from deeppart.plan.restart import Committed
from deeppart.storage.steps import MANIFEST_NAME, MOST_LOOKS, list_steps, manifest_key
from deeppart.storage.store import Store

_LIMIT_BYTES = 1 << 30


class StepState(StrEnum):
    """The state of a step, as far as its manifest tells."""

    COMMITTED = "committed"  # it has a sound one
    UNFINISHED = "unfinished"  # it was never committed
    NEWER = "newer"  # a newer version has written it
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step of a store: its manifest, or the reason why it has no sound one, and its parts.

    Attributes:
        store, key: where it is.
        signing: the keys; it must be signed with one of them. None: not checked.
        error: why there is no sound manifest; MissingError if it was never committed; None if there is one.
    """

    store: Store
    key: StepKey
    signing: Signing | None
    error: FormatError | StorageError | None
    _manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """The sound manifest; raises ``error`` if there is none."""
        if self._manifest is None:
            assert self.error is not None
            raise self.error
        return self._manifest

    @property
    def state(self) -> StepState:
        """See :class:`StepState`."""
        if self.error is None:
            return StepState.COMMITTED
        if isinstance(self.error, MissingError):
            return StepState.UNFINISHED
        return StepState.NEWER if isinstance(self.error, NewerFormatError) else StepState.DAMAGED

    @property
    def reason(self) -> str:
        """Why it is no sound checkpoint."""
        assert self.error is not None
        has_more = self.error.found and self.state != StepState.UNFINISHED
        return f"{self.error.summary}: {self.error.found}" if has_more else self.error.summary

    @property
    def where(self) -> str:
        """The address of its place."""
        return self.store.where(step_name(self.key))

    @property
    def order_of_commit(self) -> tuple[str, int, int]:
        """By time, then sequence: times of one session ascend, whatever its clock says."""
        return (self.manifest.created, self.key.sequence, self.key.step)

    @property
    def order(self) -> tuple[int, str, int]:
        """By which the newest is the last: step, then time of the commit, then sequence. Sessions are random."""
        return (self.key.step, self.manifest.created, self.key.sequence)

    def as_committed(self) -> Committed:
        """For the planner of a restore."""
        return Committed(self.manifest.attempt, self.where, self.manifest.parts, self.manifest.created)

    def is_retired(self) -> bool:
        """True if a running job, or somebody, has removed it meanwhile; False if that cannot be found out."""
        try:
            return MANIFEST_NAME not in self.store.list(step_name(self.key)) and self.state != StepState.UNFINISHED
        except MissingError:
            return True
        except StorageError:  # such as a file in place of the directory, which no job puts there
            return False

    @contextmanager
    def open_part(self, rank: int) -> Iterator[tuple[StoredBytes, PartReader]]:
        """Open a part whose length, header, footer and index are those that the manifest names, with the bytes."""
        record, key = self.manifest.parts[rank], self._key_of(rank)
        with self.store.open(key) as source:
            if source.size != record.nbytes:
                raise CorruptFileError(
                    f"the part file is {'truncated' if source.size < record.nbytes else 'longer than it was written'}",
                    found=f"it has {source.size} bytes instead of {record.nbytes}",
                    where=self.store.where(key),
                )
            yield (
                source,
                PartReader(
                    source,
                    where=self.store.where(key),
                    expected_attempt=self.manifest.attempt,
                    expected_rank=rank,
                    expected_index_digest=record.index_digest,
                    signing=self.signing,
                ),
            )

    def part_problem(self, rank: int) -> str | None:
        """What is wrong with a part, or None, without its chunks: the earlier parts that it refers to must be there
        too, and be those that it names.
        """
        try:
            with self.open_part(rank) as (_, reader):
                try:
                    reader.check_bases()
                except (FormatError, StorageError) as error:
                    return f"refers to a part that cannot be used: {one_line(error)}"
        except MissingError:
            return "is missing"
        except StorageError as error:
            return f"cannot be looked at: {error.found}"
        except FormatError as error:
            return f"is not as it was written: {one_line(error)}"
        return None

    def first_problem(self) -> str | None:
        """The reason why it cannot be restored, as far as that can be seen; None if it can."""
        for rank in range(len(self.manifest.parts)):
            if (problem := self.part_problem(rank)) is not None:
                return f"part {rank} {problem}"
        return None

    def _key_of(self, rank: int) -> str:
        return f"{step_name(self.key)}/{self.manifest.parts[rank].file}"


@dataclass(frozen=True, slots=True)
class StoredSteps:
    """The steps of a store, but for those that were removed except for parts to which others refer.

    Attributes:
        committed: those with a sound manifest, oldest first.
        others: those without one, in the order of their keys.
        since: steps with lower numbers were not looked at; None: there are none.
    """

    committed: tuple[StoredStep, ...]
    others: tuple[StoredStep, ...]
    since: int | None = None

    @property
    def unfinished(self) -> tuple[StoredStep, ...]:
        """Those that were never committed."""
        return tuple(each for each in self.others if each.state == StepState.UNFINISHED)

    @property
    def unusable(self) -> tuple[StoredStep, ...]:
        """Those whose manifest is no sound one."""
        return tuple(each for each in self.others if each.state != StepState.UNFINISHED)


def read_manifest(store: Store, key: StepKey, signing: Signing | None) -> Manifest:
    """The manifest of a committed step; MissingError if it has none."""
    where = store.where(manifest_key(key))
    try:
        data = store.get(manifest_key(key), _LIMIT_BYTES)
    except MissingError as error:
        error.summary = "no manifest: the checkpoint was not completed"
        raise
    manifest = decode_manifest(data, where=where, signing=signing)
    if manifest.attempt.key != key:
        other = manifest.attempt.key
        raise CorruptFileError(
            "a manifest lies in the directory of another step",
            expected=_describe(key),
            found=_describe(other),
            where=where,
        )
    return manifest


def _describe(key: StepKey) -> str:
    return f"step {key.step} of session {key.session}, sequence {key.sequence}"


def read_step(store: Store, key: StepKey, signing: Signing | None) -> StoredStep:
    """A step, committed or not."""
    try:
        return StoredStep(store, key, signing, None, read_manifest(store, key, signing))
    except (FormatError, StorageError) as error:
        if lacks_resources(error):  # which says nothing of the step
            raise
        return StoredStep(store, key, signing, error)


def read_steps(store: Store, signing: Signing | None, step: int | None = None, *, newest: bool = False) -> StoredSteps:
    """All steps, or all attempts at one; not those that a running job removes meanwhile.

    ``newest``: down to the newest step with a sound manifest. What is read does not grow with the steps kept.
    """
    found: dict[StepKey, StoredStep] = {}
    since: int | None = None
    for _ in range(MOST_LOOKS):
        known = {key: each for key, each in found.items() if each.error is None}
        found, since = {}, None
        for key in reversed([key for key in list_steps(store) if step in (None, key.step)]):
            if newest and any(each.error is None and each.key.step > key.step for each in found.values()):
                since = key.step + 1
                break
            found[key] = known.get(key) or read_step(store, key, signing)
        retired = {key for key, each in found.items() if each.error is not None and each.is_retired()}
        if not retired:  # otherwise the job has committed newer ones, and there may be no others
            break
    committed = sorted((each for each in found.values() if each.error is None), key=lambda each: each.order)
    needed = {key for each in committed for key, _ in each.manifest.needed_parts}
    others = [each for key, each in sorted(found.items()) if each.error is not None and key not in retired]
    return StoredSteps(
        tuple(committed),
        tuple(each for each in others if each.state != StepState.UNFINISHED or each.key not in needed),
        since,
    )


class NeededParts:
    """The parts that must stay because committed steps refer to them, of a store whose manifests one process removes.

    Nothing is taken for unneeded on doubt: a manifest that cannot be had, or a store that cannot be listed, is an
    error, and one that is damaged counts as referring to every earlier part of its session.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: What each manifest refers to; None: it is damaged. A manifest never changes, so each is read once.
        self._references: dict[StepKey, frozenset[tuple[StepKey, str]] | None] = {}

    def look(self) -> None:
        """See which steps are committed now, and read the manifests that are new; raises StorageError on doubt."""
        found: dict[StepKey, frozenset[tuple[StepKey, str]] | None] = {}
        for key in filter(None, map(parse_step_name, self._store.list())):  # raises if there is no store
            if self._has_manifest(key):
                known = self._references.get(key)
                found[key] = self._read(key) if known is None else known
        self._references = found

    def forget(self, key: StepKey) -> None:
        """The manifest of a step has been removed."""
        self._references.pop(key, None)

    @property
    def committed(self) -> set[StepKey]:
        """The steps that have a manifest."""
        return set(self._references)

    @property
    def steps(self) -> set[StepKey]:
        """Those to which others refer."""
        return {step for references in self._references.values() for step, _ in references or ()}

    def names(self, key: StepKey) -> Container[str]:
        """Names of the parts of a step that are needed."""
        if any(
            references is None and other.session == key.session and other.sequence > key.sequence
            for other, references in self._references.items()
        ):
            return _Everything()
        known = self._references.values()
        return {name for references in known for step, name in references or () if step == key}

    def _has_manifest(self, key: StepKey) -> bool:
        """Asked of the listing: a manifest that is not found where its step is not found either says nothing."""
        try:
            return MANIFEST_NAME in self._store.list(step_name(key))
        except MissingError:  # removed by another process, wholly
            return False
        except StorageError as error:
            if error.errno == errno.ENOTDIR:  # a file that somebody has named like a step
                return False
            raise

    def _read(self, key: StepKey) -> frozenset[tuple[StepKey, str]] | None:
        try:  # whoever has signed it: what a forged one refers to stays, and no more than that
            manifest = read_manifest(self._store, key, None)
        except FormatError:
            return None
        size = manifest.attempt.world_size
        return frozenset((step, part_file_name(rank, size)) for step, rank in manifest.needed_parts)


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


def committed_steps(store: Store, among: Iterable[StepKey] | None = None) -> list[StepKey]:
    """Steps with a manifest, whatever is in it: those of a list, in its order; by default all, ascending."""
    keys = list_steps(store) if among is None else among
    return [key for key in keys if is_committed(store, key)]


def is_committed(store: Store, key: StepKey) -> bool:
    """True if a step has a manifest, or something in the place of one."""
    try:
        return store.stat(manifest_key(key)) is not None
    except CorruptFileError:
        return True
    except StorageError as error:
        error.summary, error.where = "cannot look for manifests", store.where()
        raise


def may_be_committed(store: Store, key: StepKey) -> bool:
    """True if a step has a manifest, or if that cannot be found out."""
    try:
        return is_committed(store, key)
    except StorageError:
        return True
