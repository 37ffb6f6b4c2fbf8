"""Committed steps of the persistent level: their manifests, and whether the files exist that these name.

A step directory without a manifest is not a checkpoint. Parts are looked at by length, header, footer and index,
without their chunks.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError, lacks_descriptors
from deeppart.model import Manifest, PartRecord, StepKey
from deeppart.part import FileSource, PartReader, Signing, decode_manifest
from deeppart.storage.files import read_file
from deeppart.storage.steps import MANIFEST_NAME, list_steps, step_directory

MANIFEST_LIMIT_BYTES = 1 << 30
#: Why a step directory without a manifest is no checkpoint.
UNFINISHED = "no manifest: the checkpoint was not completed"


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A step directory with a sound manifest.

    Attributes:
        key: the key of the directory.
        directory: the directory.
        manifest: its manifest.
    """

    key: StepKey
    directory: Path
    manifest: Manifest

    @property
    def order(self) -> tuple[int, str, int]:
        """By which the newest is the last: step, then time of the commit, then sequence. Sessions are random."""
        return (self.key.step, self.manifest.created, self.manifest.attempt.sequence)


def read_manifest(root: Path, key: StepKey, signing: Signing | None) -> Manifest:
    """The manifest of a committed step."""
    path = step_directory(root, key) / MANIFEST_NAME
    manifest = decode_manifest(read_file(path, MANIFEST_LIMIT_BYTES), where=str(path), signing=signing)
    if manifest.attempt.key != key:
        other = manifest.attempt.key
        raise CorruptFileError(
            "a manifest lies in the directory of another step",
            expected=_describe(key),
            found=_describe(other),
            where=str(path),
        )
    return manifest


def _describe(key: StepKey) -> str:
    return f"step {key.step} of session {key.session}, sequence {key.sequence}"


def read_manifests(root: Path, signing: Signing | None) -> tuple[list[CommittedStep], dict[StepKey, str]]:
    """Every committed step, oldest first, and the reason for each step directory that is not a sound checkpoint."""
    found: list[CommittedStep] = []
    problems: dict[StepKey, str] = {}
    for key, directory in list_steps(root).items():
        try:
            found.append(CommittedStep(key, directory, read_manifest(root, key, signing)))
        except FileNotFoundError:
            problems[key] = UNFINISHED
        except (FormatError, StorageError) as error:
            if lacks_descriptors(error):
                raise
            problems[key] = f"{error.summary}: {error.found}" if error.found else error.summary
    return sorted(found, key=lambda each: each.order), problems


def unusable(problems: Mapping[StepKey, str]) -> dict[StepKey, str]:
    """Those of the problems of :func:`read_manifests` that are about steps that were committed, in order."""
    return {key: reason for key, reason in sorted(problems.items()) if reason != UNFINISHED}


def committed_steps(root: Path) -> list[StepKey]:
    """Steps with a manifest, ascending, without reading them."""
    return committed_among(list_steps(root), root)


def committed_among(listed: Mapping[StepKey, Path], root: Path) -> list[StepKey]:
    """Those of the step directories of a root that have a manifest, in their order."""
    try:
        return [key for key, directory in listed.items() if access.exists(directory / MANIFEST_NAME)]
    except OSError as error:
        raise storage_error("cannot look for manifests", error, root) from error


def first_problem(directory: Path, manifest: Manifest, signing: Signing | None) -> str | None:
    """The reason why a committed step cannot be restored from its directory, as far as that can be seen; None if it
    can.
    """
    for record in manifest.parts:
        problem, _ = part_problem(directory, manifest, record, signing)
        if problem is not None:
            return f"part {record.rank} {problem}"
    return None


def part_problem(
    directory: Path, manifest: Manifest, record: PartRecord, signing: Signing | None
) -> tuple[str | None, int]:
    """The fault of one part, or None; and its length.

    The part is the one that the manifest names if its header says so and its index hashes to what the manifest says.
    The older files that it refers to must lie beside it, and be those that it names. With keys, its signature
    must hold.
    """
    path = directory / record.file
    problem, nbytes = file_length(path)
    if problem is None and nbytes != record.nbytes:
        problem = f"has {nbytes} bytes instead of {record.nbytes}"
    if problem is None:
        problem = _wrong_inside(path, manifest, record, signing)
    return problem, nbytes


def file_length(path: Path) -> tuple[str | None, int]:
    """(what is wrong, or None; bytes) of a file."""
    try:
        status = access.lstat(path)
    except FileNotFoundError:
        return "is missing", 0
    except OSError as error:
        return f"cannot be looked at: {error.strerror}", 0
    return (None, status.st_size) if stat.S_ISREG(status.st_mode) else ("is not a regular file", 0)


def _wrong_inside(path: Path, manifest: Manifest, record: PartRecord, signing: Signing | None) -> str | None:
    try:
        with FileSource(path) as source:
            reader = PartReader(
                source,
                where=str(path),
                expected_attempt=manifest.attempt,
                expected_rank=record.rank,
                expected_index_digest=record.index_digest,
                signing=signing,
            )
            try:
                reader.check_bases()
            except (FormatError, StorageError) as error:
                return f"refers to a file that cannot be used: {_one_line(error)}"
    except (FormatError, StorageError) as error:
        return f"is not as it was written: {_one_line(error)}"
    return None


def _one_line(error: DeeppartError) -> str:
    """Summary, finding and place."""
    return ": ".join(text for text in (error.where, error.summary, error.found) if text)
