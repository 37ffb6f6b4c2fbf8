"""The steps of a store: which exist, which are committed, which parts they need, and whether these are sound.

Restores, retention, inspection and repair use this module. A step without a manifest is not a checkpoint. Parts are
checked by length, header, footer and index, without their chunks.
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
    """The state of a step by its manifest."""

    COMMITTED = "committed"  # the manifest is sound
    UNFINISHED = "unfinished"  # there is no manifest
    NEWER = "newer"  # written by a newer version
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step of a store: its manifest, or the reason why it has no sound one, and access to its parts.

    Attributes:
        store, key: the store and the key of the step.
        signing: the keys, with one of which it must be signed; None: not checked.
        error: why there is no sound manifest: MissingError if the step was never committed. None if there is one.
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
        """Why the step is no sound checkpoint."""
        assert self.error is not None
        has_more = self.error.found and self.state != StepState.UNFINISHED
        return f"{self.error.summary}: {self.error.found}" if has_more else self.error.summary

    @property
    def where(self) -> str:
        """The address of the step, for messages."""
        return self.store.where(step_name(self.key))

    @property
    def order_of_commit(self) -> tuple[str, int, int]:
        """Sort key: time of the commit, which ascends within a session, then sequence."""
        return (self.manifest.created, self.key.sequence, self.key.step)

    @property
    def order(self) -> tuple[int, str, int]:
        """Sort key, newest last: step, then time of the commit, then sequence. Session ids are random."""
        return (self.key.step, self.manifest.created, self.key.sequence)

    def as_committed(self) -> Committed:
        """The step for the restart planner."""
        return Committed(self.manifest.attempt, self.where, self.manifest.parts, self.manifest.created)

    def is_retired(self) -> bool:
        """True if the step has been removed since it was read; False if that is unknown."""
        try:
            return MANIFEST_NAME not in self.store.list(step_name(self.key)) and self.state != StepState.UNFINISHED
        except MissingError:
            return True
        except StorageError:  # for example a file instead of the directory, which no job creates
            return False

    @contextmanager
    def open_part(self, rank: int) -> Iterator[tuple[StoredBytes, PartReader]]:
        """Open a part, and check that length, header, footer and index are those in the manifest."""
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
        """What is wrong with a part, or with parts to which it refers, without reading chunks; None if nothing."""
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
        """The reason for which the step cannot be restored, without reading chunks; None if none was found."""
        for rank in range(len(self.manifest.parts)):
            if (problem := self.part_problem(rank)) is not None:
                return f"part {rank} {problem}"
        return None

    def _key_of(self, rank: int) -> str:
        return f"{step_name(self.key)}/{self.manifest.parts[rank].file}"


@dataclass(frozen=True, slots=True)
class StoredSteps:
    """The steps of a store, without removed ones of which only parts remain to which others refer.

    Attributes:
        committed: steps with a sound manifest, oldest first.
        others: steps without one, in the order of their keys.
        since: steps with lower numbers were not read; None if all steps were read.
    """

    committed: tuple[StoredStep, ...]
    others: tuple[StoredStep, ...]
    since: int | None = None

    @property
    def unfinished(self) -> tuple[StoredStep, ...]:
        """Steps that were never committed."""
        return tuple(each for each in self.others if each.state == StepState.UNFINISHED)

    @property
    def unusable(self) -> tuple[StoredStep, ...]:
        """Steps whose manifest is not sound."""
        return tuple(each for each in self.others if each.state != StepState.UNFINISHED)


def read_manifest(store: Store, key: StepKey, signing: Signing | None) -> Manifest:
    """Read the manifest of a step; MissingError if it has none."""
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
    """Read a step, committed or not."""
    try:
        return StoredStep(store, key, signing, None, read_manifest(store, key, signing))
    except (FormatError, StorageError) as error:
        if lacks_resources(error):  # this says nothing about the step
            raise
        return StoredStep(store, key, signing, error)


def read_steps(store: Store, signing: Signing | None, step: int | None = None, *, newest: bool = False) -> StoredSteps:
    """Read all steps, or all attempts at ``step``, without those that a running job removes in the meantime.

    ``newest``: stop after the newest step with a sound manifest, so that the cost does not grow with the number of
    steps.
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
        if not retired:  # otherwise read again: the job has committed newer steps
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
    """The parts that must stay because committed steps refer to them. Only one process may remove manifests.

    In doubt a part is needed: a manifest that cannot be read or a store that cannot be listed is an error, and a
    damaged manifest counts as referring to every earlier part of its session.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: References of each manifest; None: damaged. Manifests never change, so each is read once.
        self._references: dict[StepKey, frozenset[tuple[StepKey, str]] | None] = {}

    def look(self) -> None:
        """Update the committed steps, and read new manifests. Raises StorageError in doubt."""
        found: dict[StepKey, frozenset[tuple[StepKey, str]] | None] = {}
        for key in filter(None, map(parse_step_name, self._store.list())):  # raises if there is no store
            if self._has_manifest(key):
                known = self._references.get(key)
                found[key] = self._read(key) if known is None else known
        self._references = found

    def forget(self, key: StepKey) -> None:
        """Record that the manifest of a step has been removed."""
        self._references.pop(key, None)

    @property
    def committed(self) -> set[StepKey]:
        """The steps that have a manifest."""
        return set(self._references)

    @property
    def steps(self) -> set[StepKey]:
        """The steps to which others refer."""
        return {step for references in self._references.values() for step, _ in references or ()}

    def names(self, key: StepKey) -> Container[str]:
        """Names of the needed parts of a step."""
        if any(
            references is None and other.session == key.session and other.sequence > key.sequence
            for other, references in self._references.items()
        ):
            return _Everything()
        known = self._references.values()
        return {name for references in known for step, name in references or () if step == key}

    def _has_manifest(self, key: StepKey) -> bool:
        """Whether a step's listing has a manifest. Without a listing, a missing manifest would prove nothing."""
        try:
            return MANIFEST_NAME in self._store.list(step_name(key))
        except MissingError:  # another process has removed the whole step
            return False
        except StorageError as error:
            if error.errno == errno.ENOTDIR:  # a file with the name of a step
                return False
            raise

    def _read(self, key: StepKey) -> frozenset[tuple[StepKey, str]] | None:
        try:  # without a key: a forged manifest can only keep parts
            manifest = read_manifest(self._store, key, None)
        except FormatError:
            return None
        size = manifest.attempt.world_size
        return frozenset((step, part_file_name(rank, size)) for step, rank in manifest.needed_parts)


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


def committed_steps(store: Store, among: Iterable[StepKey] | None = None) -> list[StepKey]:
    """Steps with a manifest of any content: those of ``among``, in order; by default all, ascending."""
    keys = list_steps(store) if among is None else among
    return [key for key in keys if is_committed(store, key)]


def is_committed(store: Store, key: StepKey) -> bool:
    """True if a step has a manifest, or anything of that name."""
    try:
        return store.stat(manifest_key(key)) is not None
    except CorruptFileError:
        return True
    except StorageError as error:
        error.summary, error.where = "cannot look for manifests", store.where()
        raise


def may_be_committed(store: Store, key: StepKey) -> bool:
    """True if a step has a manifest, or if that is unknown."""
    try:
        return is_committed(store, key)
    except StorageError:
        return True
