"""Import: a checkpoint of another library as a committed step of a persistent directory."""

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
        step: the step that was made.
        form: what was read: "dcp", "torch", "safetensors" or "hdf5".
        files: how many files it consisted of.
        leaves, values: how many of each.
        nbytes: bytes of the leaves, each that is tied once.
        remarks: lines about what takes more memory than usual.
        seconds: time that it took, where it was measured.
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
    """Make a committed step of a checkpoint of another library. At most some MiB of it are in memory at a time.

    A file of ``torch.save`` is mapped: do not write over it meanwhile. Of a DCP checkpoint one piece of a tensor is in
    memory, or all of one that is not divided by rows; of an HDF5 file tensors that are made of others, and one
    data set in chunks.

    Args:
        source: as :func:`deeppart.interop.load` takes it.
        directory: a persistent directory; it is made if it is not there.
        form: "dcp", "torch", "safetensors" or "hdf5"; None to find out.
        step: number of the step; None for 0, if the directory has no steps.
        keys: globs over paths as of :func:`deeppart.load`; None for everything.
        progress: called with bytes done and bytes in all, now and then.
        sign_key_file: sign it with this key, as ``Config.sign_key_file``.

    Raises:
        RestoreError, FormatError, UnsupportedLeafError, StructureMismatchError: as of :func:`deeppart.interop.load`.
        StateError: it is no state, or the step has to be named.
        StepExistsError: there is such a step. DirectoryInUseError: a job is running there.
        ConfigError: the settings, or the key, are not used. StorageError: a file cannot be read or written.
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
