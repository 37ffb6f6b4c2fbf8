"""Open safetensors files: one, or a directory as Hugging Face has it, with an index or without."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from deeppart.errors import CorruptFileError, RestoreError
from deeppart.interop.files import ForeignFile, is_directory, is_plain_name, names_in, read_small
from deeppart.interop.opened import FileSpan, Opened, Source, address_of
from deeppart.interop.safetensors.header import FORMAT, LENGTH_BYTES, Entry, Header, check_length, decode_header
from deeppart.part.format import short
from deeppart.state.tree.leaves import LeafType, dtype_name, new_array
from deeppart.state.tree.runs import decode_leaf_value

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
#: Under which `deeppart export` notes the small values of a state.
VALUES = "deeppart.values"
_MOST_INDEX_BYTES = 1 << 30


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Read a safetensors file onto the CPU, or all files of a directory as Hugging Face has them.

    Args:
        path: a ``.safetensors`` file; its ``.safetensors.index.json``; or a directory with either.
        keys: globs over names as of :func:`deeppart.load`; only the tensors that they cover are read. None for all.

    Returns:
        Name -> tensor. Names that a file's metadata calls another name of a tensor (``save_model``) are tied to it. The
        small values that ``deeppart export`` has noted there are among them.

    Raises:
        RestoreError: there is no such file.
        CorruptFileError: a file is damaged, or files contradict each other.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.
    """
    with ExitStack() as closing:
        opened = open_safetensors(Path(path), closing, keys)
        state: dict[str, Any] = opened.load()
        return state


def open_safetensors(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open them; nothing but headers is read."""
    placed: dict[str, str] | None = None
    if is_directory(path):
        folder, names = path, names_in(path)
        indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
        files = [name for name in names if name.endswith(SUFFIX)]
        if len(indexes) == 1 and not (len(files) == 1 and files[0] == "model" + SUFFIX):
            placed = _read_index(folder / indexes[0])
    elif path.name.endswith(INDEX_SUFFIX):
        folder, files, placed = path.parent, [], _read_index(path)
    else:
        folder, files = path.parent, [path.name]
    if placed is not None:
        files = sorted(set(placed.values()))
    if not files:
        raise RestoreError(
            "there are no safetensors here",
            expected=f"a file *{SUFFIX}, or an index *{INDEX_SUFFIX}",
            where=str(path),
        )
    opened = _open_files(folder, files, placed, closing)
    opened.choose(keys, str(path))
    return opened


def _open_files(folder: Path, files: Sequence[str], placed: Mapping[str, str] | None, closing: ExitStack) -> Opened:
    state: dict[str, Any] = {}
    sources: dict[int, Source] = {}
    notes: dict[str, str] = {}
    for name in files:
        file = closing.enter_context(ForeignFile(folder / name))
        header = read_header(file)
        notes |= header.metadata
        for key, entry in header.entries.items():
            if key in state:
                raise CorruptFileError(
                    "two files hold a tensor of one name", found=short(key), where=str(folder / name)
                )
            state[key] = _placeholder(entry, f"{file.path}, {key}")
            if entry.nbytes:
                sources[address_of(state[key])] = FileSpan(file, entry.offset, entry.nbytes, name=key)
    if placed is not None and (missing := sorted(placed.keys() - state.keys())):
        raise CorruptFileError(
            "a tensor is not in the file that the index names",
            expected=f"{short(missing[0])} in {placed[missing[0]]}",
            where=str(folder),
            todo="a file is of another release of the model: fetch all of them again",
        )
    _add_noted(state, notes, str(folder))
    return Opened("safetensors", state, sources, len(files), closing)


def read_header(file: ForeignFile) -> Header:
    """The header of an open file."""
    prefix = bytes(file.read_at(0, min(LENGTH_BYTES, file.size)))
    length = check_length(prefix, file.size, file.path)
    data = bytes(file.read_at(LENGTH_BYTES, length))
    return decode_header(data, file.size - LENGTH_BYTES - length, file.path)


def _placeholder(entry: Entry, where: str) -> torch.Tensor:
    kind = LeafType("torch", dtype_name(entry.dtype, where), entry.shape)
    kind.check(where)
    made = new_array(kind)
    assert isinstance(made, torch.Tensor)
    return made


def _add_noted(state: dict[str, Any], notes: Mapping[str, str], where: str) -> None:
    """Second names of tensors, as ``safetensors.torch.save_model`` notes them, and values that we have noted."""
    for name, other in notes.items():
        if name not in state and name != FORMAT and isinstance(state.get(other), torch.Tensor):
            state[name] = state[other]
    if VALUES not in notes:
        return
    try:
        values = json.loads(notes[VALUES])
        found = {name: decode_leaf_value(value, where) for name, value in values.items()}
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptFileError("the values that were noted beside tensors are damaged", where=where) from error
    if found.keys() & state.keys():
        raise CorruptFileError("a value has the name of a tensor", found=short(min(found.keys() & state.keys())))
    state |= found


def _read_index(path: Path) -> dict[str, str]:
    """Name of a tensor -> name of a file beside the index."""
    try:
        found = json.loads(read_small(path, _MOST_INDEX_BYTES))["weight_map"]
        sound = type(found) is dict and all(is_plain_name(name) and name.endswith(SUFFIX) for name in found.values())
    except FileNotFoundError as error:
        raise RestoreError("there is no such index", where=str(path)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            "an index of safetensors files is damaged", found=f"{type(error).__name__}: {error}"[:200], where=str(path)
        ) from error
    if not sound:
        raise CorruptFileError(
            "an index of safetensors files leads out of its directory", expected="names of files", where=str(path)
        )
    return {str(name): file for name, file in found.items()}
