"""Committed steps of a directory, whose manifests are sound; their parts are not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from deeppart.model import Attempt, Manifest, StepKey
from deeppart.part import Signing, decode_manifest, encode_manifest, parse_step_name, step_name
from deeppart.storage import MANIFEST_NAME, PersistentLevel, PosixStore, list_steps, remove_step
from tests.golden import forge

FIRST, SECOND = "1" * 32, "2" * 32


def step_directory(root: Path, key: StepKey) -> Path:
    return root / step_name(key)


def newest_key(root: Path) -> StepKey:
    return list_steps(PosixStore(root))[-1]


def retire(directory: Path) -> None:
    """Remove a step, as a job does."""
    key = parse_step_name(directory.name)
    assert key is not None
    remove_step(PosixStore(directory.parent), key)


def manifest_of(step: int, session: str = FIRST, sequence: int = 0, **changes: Any) -> Manifest:
    """A sound one, of two ranks."""
    sound = decode_manifest(forge.seal(forge.manifest_document()), where="sound")
    parts = tuple(replace(part, bases=()) for part in sound.parts)
    attempt = Attempt(forge.LINEAGE.hex(), session, sequence, step, 2)
    return replace(sound, **{"attempt": attempt, "compared": (), "parts": parts, **changes})


def commit(
    root: Path, step: int, session: str = FIRST, sequence: int = 0, *, signing: Signing | None = None, **changes: Any
) -> StepKey:
    """A step directory with a manifest in it, and nothing else."""
    manifest = manifest_of(step, session, sequence, **changes)
    key = manifest.attempt.key
    step_directory(root, key).mkdir(parents=True)
    PersistentLevel(PosixStore(root)).commit(key, encode_manifest(manifest, signing))
    return key


def begun(root: Path, step: int, session: str = FIRST, sequence: int = 0) -> StepKey:
    """A step directory without a manifest."""
    key = StepKey(step, session, sequence)
    step_directory(root, key).mkdir(parents=True)
    return key


def manifest_file(root: Path, key: StepKey) -> Path:
    return step_directory(root, key) / MANIFEST_NAME
