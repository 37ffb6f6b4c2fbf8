"""The steps to verify, and their manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import DeeppartError, FormatError, RestoreError, StorageError
from deeppart.model import Manifest, StepKey
from deeppart.offline.inspect.listing import require_directory
from deeppart.part import Signing
from deeppart.storage.manifests import committed_steps, read_manifest
from deeppart.storage.steps import MOST_LOOKS, list_steps, step_directory


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to verify.

    Attributes:
        directory: the step's directory.
        key: from its name.
        manifest: None if there is no sound one.
        error: the reason why there is none; None if it was never committed.
        signing: the keys; it must be signed with one of them. None: not checked.
    """

    directory: Path
    key: StepKey
    manifest: Manifest | None
    error: DeeppartError | None
    signing: Signing | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that verifying reads."""
        return self.manifest.nbytes + self.manifest.referenced_bytes if self.manifest else 0


def choose_steps(
    root: Path, step: int | None = None, *, every: bool = False, signing: Signing | None = None
) -> list[Subject]:
    """The steps to verify: one step, every step directory, or by default the newest commit, sound or not.

    Of a step that there are several attempts at, all of them.
    """
    require_directory(root)
    for _ in range(MOST_LOOKS):
        present = list(list_steps(root))
        keys = present
        if step is not None:
            keys = [key for key in present if key.step == step]
        elif not every:
            committed = committed_steps(root)
            keys = [key for key in committed if key.step == committed[-1].step]
        if keys or present == list(list_steps(root)):  # otherwise a running job has moved on meanwhile
            break
    if not keys:
        numbers = sorted({key.step for key in present})
        raise RestoreError(
            "there is no committed checkpoint" if step is None else f"there is no step {step}",
            found=f"steps {', '.join(map(str, numbers[-8:]))}" if numbers else "no step directory",
            where=str(root.absolute()),
            todo="`deeppart ls DIR` lists the steps"
            if numbers
            else "give the persistent_dir of a job that has saved a step",
        )
    return [_subject(root, key, signing) for key in keys]


def _subject(root: Path, key: StepKey, signing: Signing | None) -> Subject:
    directory = step_directory(root, key)
    try:
        return Subject(directory, key, read_manifest(root, key, signing), None, signing)
    except FileNotFoundError:
        return Subject(directory, key, None, None)
    except (FormatError, StorageError) as error:
        return Subject(directory, key, None, error)
