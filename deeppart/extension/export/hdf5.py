"""A committed checkpoint as one HDF5 file (docs/commands.md, export), lossless.

The leaves are data sets below `/state`, for any reader. `/structure` has the structure document of a checkpoint
(docs/format.md), from which :class:`Archived` rebuilds the state.

HDF5 has no built-in types for bfloat16, float8 and numpy's wide strings and times. bfloat16 is defined as a custom
float type, which any HDF5 reader converts to numbers; float8 and float4 are stored as bytes; the others as opaque bytes
tagged with the numpy dtype, which h5py understands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from deeppart.access import storage_error
from deeppart.extension.export.content import Content
from deeppart.extension.export.output import OutputFile
from deeppart.model import VERSION
from deeppart.offline import select
from deeppart.state.document import Numbers, decode_structure, encode_leaf, encode_small, encode_structure, encode_tree
from deeppart.state.paths import component
from deeppart.state.restore import Target, build, leaves_to_check, tie
from deeppart.state.tensors import Array, LeafType, flat_bytes
from deeppart.state.tree import ArrayLeaf, Branch, Node, ValueLeaf, container_kind, inside_objects, numbers_in
from deeppart.state.values import encode_value

#: The file attribute with the version, and the data set with the structure document.
ARCHIVE, STRUCTURE = "deeppart_archive", "structure"
ARCHIVE_VERSION = 3


class Hdf5Writer:
    """Writes HDF5 archives."""

    form = "hdf5"
    is_directory = False

    def write(self, content: Content) -> list[str]:
        """Write the content."""
        assert isinstance(content.out, OutputFile)
        _Archive(content).write(content.out.path, content.out.out)
        return []


class _Archive:
    """Writes one archive."""

    def __init__(self, content: Content) -> None:
        self._checkpoint, self._suspect, self._progress = content.checkpoint, content.suspect, content.progress
        self._content, self._tree, self._leaves = content, content.tree, content.leaves
        content.refuse_repeats()
        self._locations: dict[int, tuple[h5py.Group, str]] = {}

    def write(self, path: Path, out: Path) -> None:
        """Write the file."""
        types = self._checkpoint.target.types
        total = sum(types[leaf].nbytes for leaf in self._leaves)
        try:
            with h5py.File(path, "w", libver=("earliest", "v110"), locking="best-effort") as file:
                self._describe(file)
                self._create(file, self._tree, "state")
                file[STRUCTURE] = np.frombuffer(self._structure(), dtype=np.uint8)
                done = 0
                for batch in self._checkpoint.batches(self._leaves):
                    self._write_leaves(batch)
                    done += sum(types[leaf].nbytes for leaf in batch)
                    self._progress(done, total)
        except (OSError, RuntimeError, ValueError) as error:  # h5py raises any of them for errors of HDF5
            raise storage_error("cannot write the archive", _as_os_error(error), out) from error

    def _describe(self, file: h5py.File) -> None:
        manifest = self._checkpoint.step.manifest
        file.attrs[ARCHIVE] = ARCHIVE_VERSION
        file.attrs["library"] = f"deeppart {VERSION}"
        file.attrs["step"] = manifest.attempt.step
        file.attrs["created"] = manifest.created
        file.attrs["world_size"] = manifest.attempt.world_size
        file.attrs["rank"] = self._checkpoint.rank
        if self._suspect:
            file.attrs["suspect"] = list(self._suspect)

    def _create(self, group: h5py.Group, node: Node, name: str) -> None:
        """Create the groups, write the values, and note the locations of the leaves."""
        node = inside_objects(node)
        if isinstance(node, ArrayLeaf):
            self._locations[node.index] = (group, name)
        elif isinstance(node, ValueLeaf):
            made = write_value(group, name, self._checkpoint.target.values[node.index])
            self._mark_rank_local(made, self._checkpoint.structure.per_rank[node.index])
        else:
            assert isinstance(node, Branch), "the structure of one rank has no marks"
            made = group.create_group(name)
            taken: set[str] = set()
            for key, child in zip(node.keys, node.children, strict=True):
                self._create(made, child, link_name(key, taken))

    def _write_leaves(self, batch: set[int]) -> None:
        structure, types = self._checkpoint.structure, self._checkpoint.target.types
        arrays = self._checkpoint.read(batch)
        for leaf in sorted(batch, key=lambda leaf: (leaf in structure.aliases, leaf)):
            group, name = self._locations[leaf]
            if (owner := self._content.same_as(leaf)) is not None:  # a hard link
                owner_group, owner_name = self._locations[owner]
                group[name] = owner_group[owner_name]
                continue
            made = write_array(group, name, arrays[leaf], types[leaf])
            made.attrs["type"] = f"{types[leaf].kind}.{types[leaf].dtype}"
            self._mark_rank_local(made, structure.per_rank[leaf])

    def _mark_rank_local(self, made: h5py.Dataset, is_rank_local: np.bool_) -> None:
        if is_rank_local:
            made.attrs["per_rank"] = True

    def _structure(self) -> bytes:
        """The structure document: leaves and values are renumbered, and views of unexported leaves become leaves."""
        structure, target = self._checkpoint.structure, self._checkpoint.target
        values = numbers_in(self._tree, (ValueLeaf,))
        numbers = {old: new for new, old in enumerate(sorted(self._leaves | values))}

        def encoded(old: int) -> list[Any]:
            if old in values:
                return encode_small(encode_value(target.values[old], f"value {old}"))
            kind, alias = target.types[old], structure.aliases.get(old)
            if alias is None or alias.owner not in self._leaves:
                return encode_leaf(kind, None)
            is_kept = kind.kind == "torch" or self._content.same_as(old) is not None
            return encode_leaf(kind, replace(alias, owner=numbers[alias.owner]) if is_kept else None)

        document = encode_structure(encode_tree(self._tree, Numbers(numbers)), list(map(encoded, numbers)))
        names = [f"{group.name}/{name}" for group, name in map(self._locations.__getitem__, sorted(self._leaves))]
        return json.dumps({"structure": document, "names": names}).encode()


class Archived:
    """The structure of an archive, or of the part that matches globs.

    Attributes:
        stored: number, type and data set of each leaf to read.
        components: numbers of the leaves whose bytes :meth:`state` needs: components of composite tensors.
    """

    def __init__(self, text: bytes, keys: Sequence[str] | None, where: str) -> None:
        document = json.loads(text)
        structure, names = decode_structure(document["structure"], where), document["names"]
        types, aliases = structure.types, structure.aliases
        if len(names) != len(types) or not all(type(name) is str for name in names):
            raise ValueError("the number of data sets is not that of the leaves")
        self._target = Target(structure, dict(types), dict(structure.values))
        for leaf, alias in aliases.items():
            if types[leaf].kind == "numpy" and not self._target.is_twin(leaf, alias):
                raise ValueError(f"leaf {leaf} is a numpy view of leaf {alias.owner}, which is never written")
        self._tree, kept = select(structure, self._target.values, keys)
        needed = kept | {aliases[leaf].owner for leaf in kept if leaf in aliases}
        self._target.dropped = frozenset(types.keys() - needed)
        stored = dict(zip(types, names, strict=True))
        self.stored = [(leaf, types[leaf], stored[leaf]) for leaf in sorted(needed - aliases.keys())]
        if len({name for *_, name in self.stored}) < len(self.stored):
            raise ValueError("two leaves have the same data set")
        self.components = leaves_to_check(self._target)

    def state(self, arrays: dict[int, Array]) -> Any:
        """Build the state from the arrays of the stored leaves, as ``deeppart.load`` does."""
        tie(self._target, arrays)
        return build(self._target, arrays, self._tree)


def _as_os_error(error: OSError | RuntimeError | ValueError) -> OSError:
    """An exception of h5py as an ``OSError`` with the errno that HDF5 has in its message."""
    named = re.search(r"errno = (\d+)", str(error))
    if isinstance(error, OSError) and (error.errno or not named):
        return error
    return OSError(int(named[1]), str(error)) if named else OSError(str(error))


_INT64_LIMIT = 1 << 63
_COMPLEX32 = np.dtype([("r", "<f2"), ("i", "<f2")])  # h5py's layout of complex numbers
_NUMBERS = frozenset("biufc")


def _utf8_names() -> h5py.h5p.PropLCID:
    names = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    names.set_char_encoding(h5py.h5t.CSET_UTF8)
    return names


def _bfloat16() -> h5py.h5t.TypeFloatID:
    """bfloat16 as an HDF5 float type: 1 bit sign, 8 bits exponent, 7 bits mantissa with an implied 1."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


_UTF8_NAMES, _BFLOAT16 = _utf8_names(), _bfloat16()


def link_name(key: Any, taken: set[str]) -> str:
    """The link name of a key: its text, with ``~`` and ``/`` escaped as in RFC 6901."""
    text = component(key)
    if not text.isprintable():  # HDF5 truncates names at NUL, and rejects lone surrogates
        text = text.encode("unicode_escape").decode("ascii")
    text = {"": "~empty", ".": "~dot"}.get(text, text)
    name, number = text, 1
    while name in taken:
        number += 1
        name = f"{text}~{type(key).__name__}" if number == 2 else f"{text}~{number}"
    taken.add(name)
    return name


def write_array(group: h5py.Group, name: str, array: Array, kind: LeafType) -> h5py.Dataset:
    """Store a leaf as a contiguous data set."""
    stored, numbers = stored_type(kind), flat_bytes(_in_order(array))
    space = h5py.h5s.create(h5py.h5s.SCALAR) if not kind.shape else h5py.h5s.create_simple(kind.shape)
    made = h5py.h5d.create(group.id, name.encode(), stored, space, lcpl=_UTF8_NAMES)
    if kind.nbytes:  # in the stored type: no conversion
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers, mtype=stored)
    return h5py.Dataset(made)


def _in_order(array: Array) -> Array:
    return array.contiguous() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)


def stored_type(kind: LeafType) -> h5py.h5t.TypeID:
    """The HDF5 type with the memory layout of a leaf's elements."""
    dtype: np.dtype[Any]
    if kind.kind == "torch":
        if kind.dtype == "bfloat16":
            return _BFLOAT16
        if kind.dtype == "complex32":
            dtype = _COMPLEX32
        else:
            dtype = np.dtype(np.uint8 if kind.dtype.startswith(("float8", "float4")) else kind.dtype)
    else:
        dtype = np.dtype(kind.dtype)
        dtype = dtype if dtype.kind in _NUMBERS | {"S"} else h5py.opaque_dtype(dtype)
    return h5py.h5t.py_create(dtype, logical=True)


def write_value(group: h5py.Group, name: str, value: Any) -> h5py.Dataset:
    """Store a small value: as a native HDF5 value, a vector for a list of numbers, or else as JSON (docs/format.md)."""
    numbers = _as_numbers(value)
    if numbers is not None:
        return group.create_dataset(name, data=numbers)
    if _is_plain(value):
        data = h5py.Empty("f8") if value is None else np.void(value) if type(value) is bytes else value
        return group.create_dataset(name, data=data)
    made = group.create_dataset(name, data=json.dumps(encode_value(value, name)), dtype=h5py.string_dtype())
    made.attrs["encoding"] = "json"
    return made


def _as_numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """The items of a list or tuple as an array, if all are of one type: bool, float, or 64-bit int."""
    if container_kind(value) not in ("list", "tuple"):
        return None
    kinds = set(map(type, value))
    dtype = {bool: np.bool_, float: np.float64, int: np.int64}.get(next(iter(kinds))) if len(kinds) == 1 else None
    try:
        return None if dtype is None else np.array(value, dtype=dtype)
    except OverflowError:
        return None


def _is_plain(value: Any) -> bool:
    """True if HDF5 can store the value exactly: its strings have neither NUL nor lone surrogates."""
    kind = type(value)
    if kind is int:
        return bool(-_INT64_LIMIT <= value < _INT64_LIMIT)
    if kind is str:
        return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)
    if kind is bytes:
        return bool(value)
    if isinstance(value, np.generic):  # a long double has padding bits
        return str(value.dtype.char) in "?bBhHiIlLqQefdFD"
    return value is None or kind in (bool, float, complex)
