"""Foreign checkpoint formats: detection, readers and writers.

A checkpoint is detected by its content, not its name. The modules of the formats import torch, so they are imported
lazily: command-line completion must not wait for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppart.errors import ConfigError, RestoreError
from deeppart.extension import ForeignFile

if TYPE_CHECKING:
    from deeppart.interop.opened import Opened

#: Format -> module and function that opens it.
_READERS = {
    "dcp": ("dcp.loading", "open_dcp"),
    "torch": ("torch_file", "open_torch_file"),
    "safetensors": ("safetensors", "open_safetensors"),
    "hdf5": ("hdf5", "open_hdf5"),
}
SOURCES = tuple(_READERS)
FORMATS = ("hdf5", "safetensors", "torch", "dcp")
#: File name suffix -> format to export.
ENDINGS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".h5": "hdf5", ".hdf5": "hdf5"}
#: Largest file of a safetensors directory: the default of Hugging Face's library.
SHARD_BYTES = 5_000_000_000
_MANIFEST_NAME, _STEP_NAME = "manifest", re.compile(r"step-[0-9]{12,19}(-[0-9a-f]{32}-[0-9]{6,19})?")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER_BYTES = 9  # of safetensors: the length and the opening brace
SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
METADATA_NAME, _DCP_SUFFIX = ".metadata", ".distcp"


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None, form: str | None = None) -> Any:
    """Load another library's checkpoint to the CPU, in one process and without executing code that it names.

    Args:
        path: a DCP directory (the ``checkpoint_id`` of the save), a ``torch.save`` file, a safetensors file, Hugging
            Face's directory of them or its index, or an HDF5 archive of ``deeppart export``.
        keys: path globs as for :func:`deeppart.load`; only matching leaves are read. None loads everything.
        form: "dcp", "torch", "safetensors" or "hdf5"; None detects it.

    Returns:
        The state. Of DCP nested dicts and lists, in which sharded tensors are whole; of ``torch.save`` what
        ``torch.load(weights_only=True)`` returns; of safetensors tensors by name, and the small values that
        ``deeppart export`` stored; of an archive the exported state. Tensors that shared memory are tied, except in
        DCP.

    Raises:
        RestoreError: no checkpoint in a supported format was found.
        FormatError: a required file is damaged.
        UnsupportedLeafError: the checkpoint contains an object that only unpickling could create, or is encoded by an
            unknown extension.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.

    Example:
        >>> import deeppart.interop, torch
        >>> torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "model.pt")
        >>> deeppart.interop.load("model.pt", keys="epoch")
        {'epoch': 3}
    """
    with ExitStack() as closing:
        return open_foreign(Path(path), closing, keys, form).load()


def open_foreign(
    path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None, form: str | None = None
) -> Opened:
    """Open a checkpoint without reading its tensors."""
    module, function = _READERS[form or recognize(path)]
    opened: Opened = getattr(import_module(f"deeppart.interop.{module}"), function)(path, closing, keys)
    return opened


def recognize(path: Path) -> str:
    """Detect the format of a checkpoint: one of :data:`SOURCES`."""
    if (names := ForeignFile.names_in(path)) is not None:
        if METADATA_NAME in names:
            return "dcp"
        if any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in names):
            return "safetensors"
        if _MANIFEST_NAME in names or any(map(_STEP_NAME.fullmatch, names)):
            raise RestoreError(
                "this is already a checkpoint directory of deeppart: there is nothing to import",
                expected="a checkpoint of another library",
                found=f"a directory of {len(names)} entries: {', '.join(names[:4])}",
                where=str(path),
                todo="restore from it with persistent_dir, load it with deeppart.load, copy the directory, or convert "
                "its steps with `deeppart export`",
            )
        raise _unknown(path, f"a directory of {len(names)} entries: {', '.join(names[:4])}")
    if path.name.endswith(INDEX_SUFFIX):
        return "safetensors"
    if path.name.endswith(_DCP_SUFFIX) or path.name == METADATA_NAME:
        raise _unknown(path, "a file of a DCP directory", todo="pass the directory")
    with ForeignFile(path) as file:
        begin = bytes(file.read_at(0, min(_HEADER_BYTES, file.size)))
    if begin[:2] in (b"PK", b"\x80\x02"):  # a zip archive, or a pickle as torch before 1.6 wrote it
        return "torch"
    if begin.startswith(_HDF5):
        return "hdf5"
    if len(begin) == _HEADER_BYTES and begin[-1:] == b"{" and int.from_bytes(begin[:-1], "little") <= file.size:
        return "safetensors"
    raise _unknown(path, f"a file that begins with {begin!r}")


def _unknown(path: Path, found: str, todo: str = "if it is one of these, name its format (--from)") -> RestoreError:
    return RestoreError(
        "the format of the checkpoint is not known",
        expected="a DCP directory, a torch.save file, safetensors, a directory of safetensors, or an HDF5 archive",
        found=found,
        where=str(path),
        todo=todo,
    )


def is_file_name(name: Any) -> bool:
    """True for a valid file name without directories."""
    if type(name) is not str or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # halves of surrogate pairs
        return False
    return True


def form_of(out: Path) -> str:
    """The export format that a file name asks for."""
    form = ENDINGS.get(out.suffix.lower())
    if form is None:
        raise ConfigError(
            "the export format cannot be derived from the file name",
            expected=f"a name that ends in {', '.join(ENDINGS)}",
            found=repr(out.name),
            todo=f"use one of these suffixes, or name the format: --to {', '.join(FORMATS)}",
        )
    return form


def writer_for(form: str, out: Path, max_shard_bytes: int | None = None) -> Any:
    """The writer of a format."""
    one_file = form in ("hdf5", "torch") or (form == "safetensors" and out.suffix.lower() == SUFFIX)
    if max_shard_bytes is not None and one_file:
        raise ConfigError(
            "a single file cannot be sharded",
            expected="DCP, or safetensors in a directory",
            found=f"{form}, {out.name}",
            todo=f"export to a directory (a name without {SUFFIX}), or omit --max-shard-size",
        )
    if form == "safetensors":
        from deeppart.interop.safetensors import SafetensorsWriter

        return SafetensorsWriter(None if one_file else max_shard_bytes or SHARD_BYTES)
    if form == "torch":
        from deeppart.interop.torch_file import TorchWriter

        return TorchWriter()
    if form == "dcp":
        from deeppart.interop.dcp.writing import DcpWriter

        return DcpWriter(max_shard_bytes)
    from deeppart.extension.export.hdf5 import Hdf5Writer

    return Hdf5Writer()
