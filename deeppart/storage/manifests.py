"""Manifests on the persistent level: a step directory without one is not a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.errors import CorruptFileError, FormatError, StorageError, lacks_descriptors
from deeppart.model import Manifest, StepKey
from deeppart.part import Signing, decode_manifest
from deeppart.storage.refusals import storage_error
from deeppart.storage.small_files import read_file
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
    if not key.may_hold(manifest.attempt):
        other = manifest.attempt.key
        raise CorruptFileError(
            "a manifest lies in the directory of another step",
            expected=_describe(key),
            found=_describe(other),
            where=str(path),
        )
    return manifest


def _describe(key: StepKey) -> str:
    return f"step {key.step}" + (f" of session {key.session}, sequence {key.sequence}" if key.session else "")


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
