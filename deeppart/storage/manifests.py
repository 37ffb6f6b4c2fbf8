"""Committed steps of a store: their manifests, and whether the parts exist that these name.

A step without a manifest is not a checkpoint. Parts are looked at by length, header, footer and index, without their
chunks.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from deeppart.errors import CorruptFileError, FormatError, MissingError, StorageError, lacks_descriptors, one_line
from deeppart.model import Manifest, PartRecord, StepKey
from deeppart.part import PartReader, Signing, decode_manifest, parse_step_name, part_file_name, step_name
from deeppart.storage.steps import MANIFEST_NAME, list_steps, manifest_key
from deeppart.storage.store import Store

_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A step with a sound manifest."""

    key: StepKey
    manifest: Manifest

    @property
    def order_of_commit(self) -> tuple[str, int, int]:
        """By time, then sequence: times of one session ascend, whatever its clock says."""
        return (self.manifest.created, self.manifest.attempt.sequence, self.key.step)

    @property
    def order(self) -> tuple[int, str, int]:
        """By which the newest is the last: step, then time of the commit, then sequence. Sessions are random."""
        return (self.key.step, self.manifest.created, self.manifest.attempt.sequence)


@dataclass(frozen=True, slots=True)
class Manifests:
    """The steps of a store.

    Attributes:
        steps: those that are committed, oldest first.
        unfinished: those without a manifest, in order, and what that means; not those that were removed but for parts
            to which others refer.
        unusable: those whose manifest is no sound one, likewise.
    """

    steps: tuple[CommittedStep, ...]
    unfinished: Mapping[StepKey, str]
    unusable: Mapping[StepKey, str]

    @property
    def problems(self) -> dict[StepKey, str]:
        """Each step that is no sound checkpoint, in order, with the reason."""
        return dict(sorted({**self.unfinished, **self.unusable}.items()))


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


def read_manifests(store: Store, signing: Signing | None) -> Manifests:
    """All of them."""
    found: list[CommittedStep] = []
    unfinished: dict[StepKey, str] = {}
    unusable: dict[StepKey, str] = {}
    for key in list_steps(store):
        try:
            found.append(CommittedStep(key, read_manifest(store, key, signing)))
        except MissingError as error:
            unfinished[key] = error.summary
        except (FormatError, StorageError) as error:
            if lacks_descriptors(error):
                raise
            unusable[key] = f"{error.summary}: {error.found}" if error.found else error.summary
    needed = {key for step in found for key, _ in step.manifest.needed_parts}
    unfinished = {key: reason for key, reason in unfinished.items() if key not in needed}
    return Manifests(tuple(sorted(found, key=lambda each: each.order)), unfinished, unusable)


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


def part_problem(
    store: Store, manifest: Manifest, record: PartRecord, signing: Signing | None
) -> tuple[str | None, int]:
    """The fault of one part, or None; and its length.

    The part is the one that the manifest names if its header says so and its index hashes to what the manifest says.
    The earlier parts that it refers to must be there, and be those that it names. With keys, its signature must hold.
    """
    key = f"{step_name(manifest.attempt.key)}/{record.file}"
    try:
        found = store.stat(key)
    except CorruptFileError as error:
        return f"is {error.summary}", 0
    except StorageError as error:
        return f"cannot be looked at: {error.found}", 0
    if found is None:
        return "is missing", 0
    if found.nbytes != record.nbytes:
        return f"has {found.nbytes} bytes instead of {record.nbytes}", found.nbytes
    return _wrong_inside(store, key, manifest, record, signing), found.nbytes


def _wrong_inside(
    store: Store, key: str, manifest: Manifest, record: PartRecord, signing: Signing | None
) -> str | None:
    try:
        with store.open(key) as source:
            reader = PartReader(
                source,
                where=store.where(key),
                expected_attempt=manifest.attempt,
                expected_rank=record.rank,
                expected_index_digest=record.index_digest,
                signing=signing,
            )
            try:
                reader.check_bases()
            except (FormatError, StorageError) as error:
                return f"refers to a part that cannot be used: {one_line(error)}"
    except (FormatError, StorageError) as error:
        return f"is not as it was written: {one_line(error)}"
    return None
