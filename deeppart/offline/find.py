"""Finding a committed step in a directory that a job may be writing to."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deeppart import access
from deeppart.config import check_step, refuse_url
from deeppart.errors import DeeppartWarning, FormatError, MissingError, RestoreError, StorageError, warn_caller
from deeppart.mistaken_paths import no_such_directory, recognize
from deeppart.model import Manifest
from deeppart.part import Signing
from deeppart.recovery import suspect_lines, warn_suspect
from deeppart.storage import (
    MANIFEST_NAME,
    MOST_LOOKS,
    CommittedStep,
    PosixStore,
    Store,
    committed_steps,
    is_gone,
    list_steps,
    read_manifest,
    read_manifests,
    step_name,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The committed step that is read.

    Attributes:
        directory, manifest: of the step.
        passed_over: lines about newer steps that cannot be used.
        suspect: lines about leaves that ranks may not have held alike.
    """

    directory: Path
    manifest: Manifest
    passed_over: tuple[str, ...]
    suspect: tuple[str, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that whoever reads it should know."""
        return self.passed_over + self.suspect

    def warn(self) -> None:
        """Warn the caller of it."""
        step = self.manifest.attempt.step
        if self.passed_over:
            warn_caller(f"step {step} is read; {'; '.join(self.passed_over)}", DeeppartWarning)
        warn_suspect(step, self.suspect)


def with_checkpoint(root: Path, step: int | None, use: Callable[[Chosen], T], signing: Signing | None) -> T:
    """Do something with a committed step; with the next newest, if the newest was asked for and a job removes it."""
    refuse_url("the checkpoint directory", root)
    step = None if step is None else check_step(step, "load(path, step)")
    root = access.below_root(root)
    for look in range(MOST_LOOKS):
        found, passed_over = find_step(root, step, signing)
        suspect = suspect_lines(PosixStore(root), found.manifest.attempt)
        directory = root / step_name(found.key)
        try:
            return use(Chosen(directory, found.manifest, passed_over, tuple(suspect)))
        except StorageError as error:
            # a job that is running may have committed the next step and removed this one
            retired = error.errno == errno.ENOENT and is_gone(directory / MANIFEST_NAME)
            if step is not None or not retired or look == MOST_LOOKS - 1:
                raise
    raise AssertionError("the last look returns or raises")


def find_step(root: Path, step: int | None, signing: Signing | None) -> tuple[CommittedStep, tuple[str, ...]]:
    """A committed step, or the newest that has a sound manifest. Of several commits of one step, the last."""
    if not root.is_dir():
        _check_place(root)
        raise no_such_directory(root)
    store = PosixStore(root)
    if step is not None:
        return _find_exactly(store, root, step, signing), ()
    for _ in range(MOST_LOOKS):
        found = read_manifests(store, signing)
        problems = found.problems
        if found.steps:
            newest = found.steps[-1]
            newer = {key: why for key, why in found.unusable.items() if key.step > newest.key.step}
            return newest, tuple(f"step {key.step} is newer, and cannot be used: {why}" for key, why in newer.items())
        if list_steps(store) == list(problems):  # otherwise a running job has moved on meanwhile
            break
    _check_place(root)
    reasons = "; ".join(f"step {key.step}: {reason}" for key, reason in problems.items())
    raise RestoreError(
        "there is no committed checkpoint",
        found=reasons or "no step directory",
        where=str(root.absolute()),
        todo="`deeppart explain DIR --local LOCAL_DIR` says whether a step can be restored from the nodes"
        if reasons
        else "wait for the job's first checkpoint, or give the directory of another job",
    )


def _check_place(root: Path) -> None:
    """Raise an error that says what the path is, if it is no checkpoint directory."""
    mistaken = recognize(root)
    if mistaken is not None:
        raise RestoreError(mistaken.what, where=str(root.absolute()), todo=mistaken.todo)


def _find_exactly(store: Store, root: Path, step: int, signing: Signing | None) -> CommittedStep:
    found: list[CommittedStep] = []
    refusal: FormatError | StorageError | None = None
    for key in list_steps(store):
        if key.step == step:
            try:
                found.append(CommittedStep(key, read_manifest(store, key, signing)))
            except MissingError:
                continue
            except (FormatError, StorageError) as error:
                refusal = error
    if found:
        return max(found, key=lambda each: each.order)
    if refusal is not None:
        raise refusal
    _check_place(root)
    committed = sorted({key.step for key in committed_steps(store)})
    raise RestoreError(
        f"step {step} is not a committed checkpoint",
        found=f"committed steps: {committed[-8:] if committed else 'none'}",
        where=str(root.absolute()),
        todo="`deeppart ls DIR` lists all steps, with what is wrong with those that are not complete",
    )
