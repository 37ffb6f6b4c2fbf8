"""Import of another library's checkpoint as a committed step of a persistent directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from deeppart.extension import write_step
from deeppart.interop.formats import open_foreign
from deeppart.types import KeyFiles

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        directory: the persistent directory.
        step: the new step.
        form: source format: "dcp", "torch", "safetensors" or "hdf5".
        files: number of source files.
        leaves, values: numbers of leaves and small values.
        nbytes: bytes of the leaves; tied leaves count once.
        remarks: one line for each thing that was not imported unchanged, or took more memory than usual.
        seconds: duration, if measured.
    """

    directory: Path
    step: int
    form: str
    files: int
    leaves: int
    values: int
    nbytes: int
    remarks: tuple[str, ...]
    seconds: float = 0.0


def import_checkpoint(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    form: str | None = None,
    step: int | None = None,
    keys: Sequence[str] | None = None,
    progress: Progress = lambda done, total: None,
    sign_key_file: KeyFiles = None,
) -> Imported:
    """Convert another library's checkpoint to a committed step, with a few MiB of it in memory at a time.

    A ``torch.save`` file is memory-mapped: do not overwrite it meanwhile. Larger memory use: one shard of a DCP tensor,
    or the whole tensor unless it is sharded by rows; composite tensors and one chunked data set of an HDF5 file.

    Args:
        source: path of the checkpoint, as for :func:`deeppart.interop.load`.
        directory: persistent directory; created if missing.
        form: "dcp", "torch", "safetensors" or "hdf5"; None detects it.
        step: step number; None means 0 if the directory has no steps.
        keys: path globs as for :func:`deeppart.load`; None imports everything.
        progress: called with the bytes done and the total bytes.
        sign_key_file: key to sign the step with, as ``Config.sign_key_file``.

    Raises:
        RestoreError, FormatError, UnsupportedLeafError, StructureMismatchError: as for :func:`deeppart.interop.load`.
        StateError: the checkpoint is not a valid state, or ``step`` is required.
        StepExistsError: the step exists. DirectoryInUseError: a job is using the directory.
        ConfigError: the settings or the key are invalid. StorageError: a file cannot be read or written.
    """
    with ExitStack() as closing:
        opened = open_foreign(Path(source), closing, keys, form)
        made = write_step(
            directory,
            opened.state,
            opened.source_of,
            where=str(source),
            step=step,
            progress=progress,
            sign_key_file=sign_key_file,
        )
        return Imported(Path(directory), made.step, opened.form, opened.files, *made[1:], opened.remarks)
