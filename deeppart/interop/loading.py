"""Checkpoints of others, whatever they are: recognised by what is there, not by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deeppart.errors import RestoreError
from deeppart.interop.dcp.metadata import METADATA_NAME
from deeppart.interop.dcp.opening import open_dcp
from deeppart.interop.files import ForeignFile, is_directory, names_in
from deeppart.interop.hdf5.loading import open_hdf5
from deeppart.interop.opened import Opened
from deeppart.interop.safetensors.loading import INDEX_SUFFIX, SUFFIX, open_safetensors
from deeppart.interop.torch_file.loading import open_torch_file
from deeppart.storage.steps import MANIFEST_NAME, parse_step_directory_name

#: What can be read, by name.
READERS = {"dcp": open_dcp, "torch": open_torch_file, "safetensors": open_safetensors, "hdf5": open_hdf5}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER_BYTES = 9  # of safetensors: the length, and the brace after it


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read a checkpoint of another library in one process, onto the CPU, without executing anything that it names.

    Args:
        path: a DCP directory, a file of ``torch.save``, a safetensors file, a directory of them as Hugging Face has
            it, or an HDF5 file.
        keys: globs over paths as of :func:`deeppart.load`; only what they cover is read. None for everything.

    Returns:
        What was saved, as :func:`deeppart.interop.dcp.load`, :func:`deeppart.interop.torch_file.load`,
        :func:`deeppart.interop.safetensors.load` or :func:`deeppart.interop.hdf5.load` gives it.

    Raises:
        RestoreError: there is no checkpoint of these kinds.
        FormatError: a file that is needed is damaged.
        UnsupportedLeafError: it holds something that only unpickling could make.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.

    Example:
        >>> import deeppart.interop, torch
        >>> torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "model.pt")
        >>> deeppart.interop.load("model.pt", keys="epoch")
        {'epoch': 3}
    """
    with ExitStack() as closing:
        return open_foreign(Path(path), closing, keys).load()


def open_foreign(
    path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None, form: str | None = None
) -> Opened:
    """Open a checkpoint; tensors are not read yet."""
    return READERS[form or recognize(path)](path, closing, keys)


def recognize(path: Path) -> str:
    """What a path leads to: one of :data:`READERS`."""
    if is_directory(path):
        names = names_in(path)
        if METADATA_NAME in names:
            return "dcp"
        if any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in names):
            return "safetensors"
        if MANIFEST_NAME in names or any(parse_step_directory_name(name) is not None for name in names):
            raise RestoreError(
                "this is a checkpoint directory of deeppart already: there is nothing to import",
                expected="a checkpoint of another library",
                found=f"a directory of {len(names)} entries: {', '.join(names[:4])}",
                where=str(path),
                todo="restore from it with persistent_dir, or read it with deeppart.load; `deeppart export` writes its "
                "steps in other formats, and a copy of the directory is a checkpoint directory, too",
            )
        raise _unknown(path, f"a directory of {len(names)} entries: {', '.join(names[:4])}")
    if path.name.endswith(INDEX_SUFFIX):
        return "safetensors"
    if path.name.endswith(".distcp") or path.name == METADATA_NAME:
        raise _unknown(path, "a file of a DCP directory", todo="name the directory")
    with ForeignFile(path) as file:
        begin = bytes(file.read_at(0, min(_HEADER_BYTES, file.size)))
    if begin[:2] in (b"PK", b"\x80\x02"):  # a zip archive; a pickle, as torch wrote before its release 1.6
        return "torch"
    if begin.startswith(_HDF5):
        return "hdf5"
    if len(begin) == _HEADER_BYTES and begin[-1:] == b"{" and int.from_bytes(begin[:-1], "little") <= file.size:
        return "safetensors"
    raise _unknown(path, f"a file that begins with {begin!r}")


def _unknown(path: Path, found: str, todo: str = "say what it is, if it is one of these (--from)") -> RestoreError:
    return RestoreError(
        "this is no checkpoint that can be read",
        expected="a DCP directory, a file of torch.save, safetensors, a directory of safetensors, or an HDF5 file",
        found=found,
        where=str(path),
        todo=todo,
    )
