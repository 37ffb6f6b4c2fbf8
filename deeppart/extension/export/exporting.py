"""Export of a step to a file or directory, with any writer."""

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
from deeppart.extension.export.content import Content, Progress
from deeppart.extension.export.hdf5 import Hdf5Writer
from deeppart.extension.export.output import OutputFile, OutputFolder
from deeppart.offline import Chosen, OpenCheckpoint, with_checkpoint
from deeppart.part import KeyFiles, parse_step_name, read_key_files


class Writer(Protocol):
    """A writer of a format.

    Attributes:
        form: name of the format.
        is_directory: true if it writes a directory.
    """

    form: str
    is_directory: bool

    def write(self, content: Content) -> Sequence[str]:
        """Write the content; the output gets its final name afterwards.

        Returns:
            One line for each kind of difference from the checkpoint.
        """
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
    progress: Progress = lambda done, total: None,
    sign_key_file: KeyFiles = None,
) -> Exported:
    """Write a committed checkpoint to a file or directory, which gets its name once it is complete.

    All bytes are verified when they are read. At most 256 MiB of leaves, or one larger leaf, are in memory at a time.
    """
    out = Path(out)
    chosen_writer: Writer = Hdf5Writer() if writer is None else writer
    signing = read_key_files(sign_key_file)
    _refuse_inside(out, Path(root))
    try:
        folder = access.open_folder(out.absolute().parent)
        mode = folder.lstat(out.name).st_mode if folder.has(out.name) else None
    except OSError as error:
        raise storage_error("cannot write the archive", error, out) from error
    with folder:
        if mode is not None and not (overwrite and stat.S_ISDIR(mode) == chosen_writer.is_directory):
            raise _name_taken(out, stat.S_ISDIR(mode), chosen_writer.is_directory)

        def use(chosen: Chosen) -> Exported:
            chosen.warn()
            output: OutputFile | OutputFolder
            output = (OutputFolder if chosen_writer.is_directory else OutputFile)(folder, out.name, out)
            with ExitStack() as opened, output:
                checkpoint = OpenCheckpoint(opened, chosen.step, rank)
                content = Content(checkpoint, keys, inner, chosen.suspect, out=output, progress=progress)
                remarks = chosen_writer.write(content)
                files, file_bytes = output.finish()
            # Components of a tensor that are small values are not counted.
            rows = [row for row in content.rows() if not row.is_empty and (row.leaf is not None or not row.composite)]
            return Exported(
                out,
                chosen_writer.form,
                chosen.manifest.attempt.step,
                rank,
                len(content.leaves),
                len(rows) - len(content.leaves),
                sum(row.own for row in rows),
                sum(content.types[leaf].nbytes for leaf in content.leaves),
                files,
                file_bytes,
                (*chosen.remarks, *remarks),
            )

        return with_checkpoint(Path(root), step, use, signing)


def _refuse_inside(out: Path, root: Path) -> None:
    """Refuse to write into the directory of a step."""
    folder, inside = os.path.realpath(out.absolute().parent), os.path.realpath(root)
    if not Path(folder).is_relative_to(inside):
        return
    within = Path(folder).relative_to(inside).parts
    if within and parse_step_name(within[0]) is not None:
        raise StorageError(
            "an archive cannot be written into a step of a checkpoint directory",
            found=f"{within[0]} in {root}",
            where=str(out),
            todo="choose a path outside of the checkpoint",
        )


def _name_taken(out: Path, is_directory: bool, makes_directory: bool) -> StorageError:
    kinds = ("a file", "a directory")
    todo = "choose another name, or replace it (--overwrite)"
    if is_directory and not makes_directory:
        todo = f"choose another name, such as {out / 'archive.h5'}: a file does not replace a directory"
    elif is_directory:
        todo += ", which works if it contains only files of an export"
    elif makes_directory:
        todo = "choose another name: a directory does not replace a file"
    return StorageError(
        f"there is {kinds[is_directory]} of that name",
        errno=errno.EEXIST,
        expected=f"an unused name for {kinds[makes_directory]}",
        where=str(out.absolute()),
        todo=todo,
    )
