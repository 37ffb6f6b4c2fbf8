"""Export: from a persistent directory to a file or directory that another library reads, whatever its format is."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import StorageError
from deeppart.extension.export.beside import BesideFile, BesideFolder
from deeppart.extension.export.content import Content, Progress, Totals
from deeppart.extension.export.hdf5 import Hdf5Writer
from deeppart.offline import Chosen, OpenCheckpoint, with_checkpoint
from deeppart.part import KeyFiles, read_key_files
from deeppart.storage import parse_step_name


class Writer(Protocol):
    """A format.

    Attributes:
        form: its name.
        is_directory: true if what it makes is a directory.
    """

    form: str
    is_directory: bool

    def write(self, content: Content) -> Totals:
        """Write all of it into what becomes the file or directory when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export. Fields: docs/commands.md, export."""

    path: Path
    form: str
    step: int
    rank: int
    leaves: int
    values: int
    per_rank: int
    nbytes: int
    files: int
    file_bytes: int
    remarks: tuple[str, ...] = ()
    seconds: float = 0.0


def export(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    writer: Writer | None = None,
    *,
    step: int | None = None,
    keys: Sequence[str] | None = None,
    inner: str | None = None,
    rank: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    sign_key_file: KeyFiles = None,
) -> Exported:
    """Write a committed checkpoint into a file, or a directory, which appears under its name when it is complete.

    Every byte is checked as it is read, in the files of older checkpoints too where the step refers to those. At most
    256 MiB of leaves, or one leaf, are in memory at a time.
    """
    out = Path(out)
    made_by: Writer = Hdf5Writer() if writer is None else writer
    told = progress or (lambda done, total: None)
    signing = read_key_files(sign_key_file)
    _refuse_inside(out, Path(root))
    try:
        folder = access.open_folder(out.absolute().parent)
        there = folder.lstat(out.name).st_mode if folder.has(out.name) else None
    except OSError as error:
        raise storage_error("cannot write the archive", error, out) from error
    with folder:
        if there is not None and not (overwrite and stat.S_ISDIR(there) == made_by.is_directory):
            raise _taken(out, stat.S_ISDIR(there), made_by.is_directory)

        def use(chosen: Chosen) -> Exported:
            chosen.warn()
            beside: BesideFile | BesideFolder
            beside = (BesideFolder if made_by.is_directory else BesideFile)(folder, out.name, out)
            with ExitStack() as files, beside:
                checkpoint = OpenCheckpoint(files, chosen.step, rank)
                content = Content(checkpoint, keys, inner, chosen.suspect, out=beside, progress=told)
                made = made_by.write(content)
                file_bytes = beside.finish()
            return Exported(
                out,
                made_by.form,
                chosen.manifest.attempt.step,
                rank,
                made.leaves,
                made.values,
                made.per_rank,
                made.nbytes,
                made.files,
                file_bytes,
                (*chosen.remarks, *made.remarks),
            )

        return with_checkpoint(Path(root), step, use, signing)


def _refuse_inside(out: Path, root: Path) -> None:
    """Refuse to write over, or beside, the files of a step."""
    folder, inside = os.path.realpath(out.absolute().parent), os.path.realpath(root)
    if not Path(folder).is_relative_to(inside):
        return
    within = Path(folder).relative_to(inside).parts
    if within and parse_step_name(within[0]) is not None:
        raise StorageError(
            "an archive is not written into a step of a checkpoint directory",
            found=f"{within[0]} in {root}",
            where=str(out),
            todo="give it a place outside of the checkpoint",
        )


def _taken(out: Path, is_directory: bool, makes_directory: bool) -> StorageError:
    """The refusal to write where a directory, or something else, is already."""
    kinds = ("a file", "a directory")
    todo = "choose another name, or have it replaced (--overwrite)"
    if is_directory and not makes_directory:
        todo = f"choose another name, such as {out / 'archive.h5'}: a file does not replace a directory"
    elif is_directory:
        todo += ": it is, if there is nothing in it but what an export makes"
    elif makes_directory:
        todo = "choose another name: a directory does not replace a file"
    return StorageError(
        f"there is {kinds[is_directory]} of that name",
        errno=errno.EEXIST,
        expected=f"a name for {kinds[makes_directory]} that nothing has",
        where=str(out.absolute()),
        todo=todo,
    )
