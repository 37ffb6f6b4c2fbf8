"""The formats of others: what can be read and written, and which one a path or a name asks for.

A checkpoint is recognised by its content, not by its name. Modules of formats are imported when they are needed:
with torch, for which the completion of the commands need not wait.
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

#: What can be read: name -> module and function.
_READERS = {
    "dcp": ("dcp.loading", "open_dcp"),
    "torch": ("torch_file", "open_torch_file"),
    "safetensors": ("safetensors", "open_safetensors"),
    "hdf5": ("hdf5", "open_hdf5"),
}
SOURCES = tuple(_READERS)
FORMATS = ("hdf5", "safetensors", "torch", "dcp")
#: Endings of names that ask for one.
ENDINGS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".h5": "hdf5", ".hdf5": "hdf5"}
#: Of the files in a directory of safetensors, as Hugging Face's library has it.
SHARD_BYTES = 5_000_000_000
_MANIFEST_NAME, _STEP_NAME = "manifest", re.compile(r"step-[0-9]{12,19}(-[0-9a-f]{32}-[0-9]{6,19})?")
COMPRESSIONS = ("none", "gzip")
_GZIP_LEVEL = 1
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER_BYTES = 9  # of safetensors: the length, and the brace after it
#: Names in directories: of safetensors, of their index, of DCP's metadata and data.
SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
METADATA_NAME, _DCP_SUFFIX = ".metadata", ".distcp"


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
    module, function = _READERS[form or recognize(path)]
    opened: Opened = getattr(import_module(f"deeppart.interop.{module}"), function)(path, closing, keys)
    return opened


def recognize(path: Path) -> str:
    """What a path leads to: one of :data:`SOURCES`."""
    if (names := ForeignFile.names_in(path)) is not None:
        if METADATA_NAME in names:
            return "dcp"
        if any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in names):
            return "safetensors"
        if _MANIFEST_NAME in names or any(map(_STEP_NAME.fullmatch, names)):
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
    if path.name.endswith(_DCP_SUFFIX) or path.name == METADATA_NAME:
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


def is_plain_name(name: Any) -> bool:
    """True of a text that can be the name of a file in a directory, and leads nowhere else."""
    if type(name) is not str or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # halves of surrogate pairs
        return False
    return True


def form_of(out: Path) -> str:
    """The format that a name asks for."""
    form = ENDINGS.get(out.suffix.lower())
    if form is None:
        raise ConfigError(
            "the name of the archive does not say its format",
            expected=f"a name that ends in {', '.join(ENDINGS)}",
            found=repr(out.name),
            todo=f"give it such a name, or name the format: --to {', '.join(FORMATS)}",
        )
    return form


def writer_for(form: str, out: Path, max_shard_bytes: int | None = None, compression: str = "none") -> Any:
    """What writes a format."""
    one_file = form in ("hdf5", "torch") or (form == "safetensors" and out.suffix.lower() == SUFFIX)
    if max_shard_bytes is not None and one_file:
        raise ConfigError(
            "what is one file has no shards",
            expected="DCP, or safetensors in a directory",
            found=f"{form}, {out.name}",
            todo=f"name a directory, without {SUFFIX}, or leave --max-shard-size out",
        )
    if compression != "none" and form != "hdf5":
        raise ConfigError(f"{form} has no compression", found=compression, todo="leave --compression out")
    if form == "safetensors":
        from deeppart.interop.safetensors import SafetensorsWriter

        return SafetensorsWriter(None if one_file else max_shard_bytes or SHARD_BYTES)
    if form == "torch":
        from deeppart.interop.torch_file import TorchWriter

        return TorchWriter()
    if form == "dcp":
        from deeppart.interop.dcp.writing import DcpWriter

        return DcpWriter(max_shard_bytes)
    from deeppart.extension.export.hdf5 import Filter, Hdf5Writer

    return Hdf5Writer(Filter(_GZIP_LEVEL) if compression == "gzip" else None)
