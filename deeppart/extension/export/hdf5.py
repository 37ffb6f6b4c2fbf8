"""A committed checkpoint as one HDF5 file (docs/commands.md, export), without losing a bit.

The leaves are data sets below `/state`, for any reader. What HDF5 cannot say of the state, `/structure` does: the
structure document of a checkpoint (docs/format.md), from which :class:`Archived` makes the state again.

HDF5 has no types for bfloat16, float8 and numpy's wide texts and times. bfloat16 is described to it as the float that
it is, so that any HDF5 reader gets numbers; float8 and float4 are stored as the bytes they are; the others as opaque
bytes that carry numpy's name of them, which h5py reads back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from deeppart.access import storage_error
from deeppart.extension.export.beside import BesideFile
from deeppart.extension.export.content import Content, Totals
from deeppart.model import VERSION
from deeppart.offline import select
from deeppart.state.document import Numbers, decode_structure, encode_structure, encode_tree
from deeppart.state.paths import component
from deeppart.state.restore import Target, build, decode_values, leaves_to_check, tie
from deeppart.state.tensors import Array, LeafType, flat_bytes
from deeppart.state.tree import ArrayLeaf, Branch, LeafNumbers, Node, ValueLeaf, container_kind, inside_objects
from deeppart.state.values import encode_value

#: The attribute of the file that has the version, and the data set that has the document.
ARCHIVE, STRUCTURE = "deeppart_archive", "structure"
ARCHIVE_VERSION = 2


class Hdf5Writer:
    """Writes HDF5."""

    form = "hdf5"
    is_directory = False

    def __init__(self, filter: Filter | None = None) -> None:  # noqa: A002
        self._filter = filter

    def write(self, content: Content) -> Totals:
        """Write all of it."""
        assert isinstance(content.out, BesideFile)
        return _Archive(content, self._filter).write(content.out.path, content.out.out)


class _Archive:
    """One archive in the making."""

    def __init__(self, content: Content, filter: Filter | None) -> None:  # noqa: A002
        self._checkpoint, self._suspect, self._progress = content.checkpoint, content.suspect, content.progress
        self._content, self._filter = content, filter
        self._tree, self._leaves = content.tree, content.leaves
        content.refuse_repeats()
        self._places: dict[int, tuple[h5py.Group, str]] = {}

    def write(self, path: Path, out: Path) -> Totals:
        """Write all of it."""
        types = self._checkpoint.target.types
        total = sum(types[leaf].nbytes for leaf in self._leaves)
        try:
            with h5py.File(path, "w", libver=("earliest", "v110"), locking="best-effort") as file:
                self._describe(file)
                self._place(file, self._tree, "state")
                file[STRUCTURE] = np.frombuffer(self._structure(), dtype=np.uint8)
                done = 0
                for batch in self._checkpoint.batches(self._leaves):
                    self._write_leaves(batch)
                    done += sum(types[leaf].nbytes for leaf in batch)
                    self._progress(done, total)
        except (OSError, RuntimeError, ValueError) as error:  # h5py raises any of them for what HDF5 says
            raise storage_error("cannot write the archive", _as_os_error(error), out) from error
        return self._content.totals()

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

    def _place(self, group: h5py.Group, node: Node, name: str) -> None:
        """Make the groups, write the values, and note where the leaves go."""
        node = inside_objects(node)
        if isinstance(node, ArrayLeaf):
            self._places[node.index] = (group, name)
        elif isinstance(node, ValueLeaf):
            made = write_value(group, name, self._checkpoint.target.values[node.index])
            self._note_own(made, self._checkpoint.structure.per_rank_values[node.index])
        else:
            assert isinstance(node, Branch), "the structure of one rank has no marks"
            made = group.create_group(name)
            taken: set[str] = set()
            for key, child in zip(node.keys, node.children, strict=True):
                self._place(made, child, link_name(key, taken))

    def _write_leaves(self, batch: set[int]) -> None:
        structure, types = self._checkpoint.structure, self._checkpoint.target.types
        arrays = self._checkpoint.read(batch)
        for leaf in sorted(batch, key=lambda leaf: (leaf in structure.aliases, leaf)):
            group, name = self._places[leaf]
            if (owner := self._content.same_as(leaf)) is not None:  # two names of one data set
                owner_group, owner_name = self._places[owner]
                group[name] = owner_group[owner_name]
                continue
            made = write_array(group, name, arrays[leaf], types[leaf], self._filter)
            made.attrs["type"] = f"{types[leaf].kind}.{types[leaf].dtype}"
            self._note_own(made, structure.per_rank[leaf])

    def _note_own(self, made: h5py.Dataset, own: np.bool_) -> None:
        if own:
            made.attrs["per_rank"] = True

    def _structure(self) -> bytes:
        """The document: leaves and values numbered anew, and views of what is not exported as leaves."""
        structure, target = self._checkpoint.structure, self._checkpoint.target
        leaves, values = sorted(self._leaves), sorted(LeafNumbers.of(self._tree).values)
        numbers = Numbers(_new_numbers(leaves, len(target.types)), _new_numbers(values, len(target.values)))
        types = [target.types[leaf] for leaf in leaves]
        aliases = {
            numbers.arrays[leaf]: replace(alias, owner=numbers.arrays[alias.owner])
            for leaf, alias in structure.aliases.items()
            if leaf in self._leaves and alias.owner in self._leaves
            if types[numbers.arrays[leaf]].kind == "torch" or self._content.same_as(leaf) is not None
        }
        document = encode_structure(
            encode_tree(self._tree, numbers),
            types,
            np.zeros(len(leaves), dtype=np.bool_),
            aliases,
            [encode_value(target.values[value], f"value {value}") for value in values],
            np.zeros(len(values), dtype=np.bool_),
            [],
            False,
        )
        names = [f"{group.name}/{name}" for group, name in map(self._places.__getitem__, leaves)]
        return json.dumps({"structure": document, "names": names}).encode()


def _new_numbers(kept: Sequence[int], count: int) -> list[int]:
    """By old number, the place among those that are kept."""
    found = [0] * count
    for place, number in enumerate(kept):
        found[number] = place
    return found


class Archived:
    """What ``/structure`` says of an archive, or of the part of it that globs cover.

    Attributes:
        stored: number, type and data set of each leaf whose bytes are needed, of which each has its own data set.
        components: numbers of those whose bytes :meth:`state` needs.
    """

    def __init__(self, text: bytes, keys: Sequence[str] | None, where: str) -> None:
        document = json.loads(text)
        structure, names = decode_structure(document["structure"], where), document["names"]
        types, aliases = structure.types, structure.aliases
        if len(names) != len(types) or not all(type(name) is str for name in names):
            raise ValueError("the names of data sets are not those of the leaves")
        self._target = Target(structure, list(types), decode_values(structure, where))
        for leaf, alias in aliases.items():  # of numpy's arrays, only the same one under two names is written so
            if types[leaf].kind == "numpy" and not self._target.is_twin(leaf, alias):
                raise ValueError(f"leaf {leaf} is a view of leaf {alias.owner} that is never written")
        self._tree, kept = select(structure, self._target.values, keys)
        needed = kept | {aliases[leaf].owner for leaf in kept if leaf in aliases}
        self._target.dropped = frozenset(range(len(types))) - needed
        self.stored = [(leaf, types[leaf], names[leaf]) for leaf in sorted(needed - aliases.keys())]
        if len({name for *_, name in self.stored}) < len(self.stored):
            raise ValueError("two leaves have one data set")
        self.components = leaves_to_check(self._target)

    def state(self, arrays: dict[int, Array]) -> Any:
        """The state, of an array for each leaf that is stored: as ``deeppart.load`` gives it."""
        tie(self._target, arrays)
        return build(self._target, arrays, self._tree)


def _as_os_error(error: OSError | RuntimeError | ValueError) -> OSError:
    """The exception of h5py as an ``OSError``, with the error number that HDF5 names in the text."""
    named = re.search(r"errno = (\d+)", str(error))
    if isinstance(error, OSError) and (error.errno or not named):
        return error
    return OSError(int(named[1]), str(error)) if named else OSError(str(error))


_INT64_LIMIT = 1 << 63
_COMPLEX32 = np.dtype([("r", "<f2"), ("i", "<f2")])  # what h5py makes of complex numbers, at half the width
_NUMBERS = frozenset("biufc")
#: Raw bytes of a chunk: HDF5 keeps one of 1 MiB in its cache while somebody reads rows.
_CHUNK_BYTES = 1 << 20
#: Shorter data sets are contiguous: the index of their one chunk would take more than is saved.
_LEAST_FILTERED_BYTES = 4096


def _utf8_names() -> h5py.h5p.PropLCID:
    names = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    names.set_char_encoding(h5py.h5t.CSET_UTF8)
    return names


def _bfloat16() -> h5py.h5t.TypeFloatID:
    """bfloat16 as HDF5 describes floats: 1 bit sign, 8 bits exponent, 7 bits mantissa with an implied 1."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


_UTF8_NAMES, _BFLOAT16 = _utf8_names(), _bfloat16()


def link_name(key: Any, taken: set[str]) -> str:
    """A name for what lies under a key: the key's text, with ``~`` and ``/`` escaped as in RFC 6901."""
    text = component(key)
    if not text.isprintable():  # HDF5 ends a name at NUL, and takes no lone surrogates
        text = text.encode("unicode_escape").decode("ascii")
    text = {"": "~empty", ".": "~dot"}.get(text, text)
    name, number = text, 1
    while name in taken:
        number += 1
        name = f"{text}~{type(key).__name__}" if number == 2 else f"{text}~{number}"
    taken.add(name)
    return name


@dataclass(frozen=True, slots=True)
class Filter:
    """What the chunks of data sets are compressed with: what every HDF5 library has.

    Attributes:
        gzip_level: of deflate, 1 to 9.
    """

    gzip_level: int


def write_array(
    group: h5py.Group,
    name: str,
    array: Array,
    kind: LeafType,
    filter: Filter | None = None,  # noqa: A002
) -> h5py.Dataset:
    """Store a leaf as a data set of its shape: contiguous, or in chunks of whole rows that go through a filter."""
    stored, numbers = stored_type(kind), flat_bytes(_in_order(array))
    space = h5py.h5s.create(h5py.h5s.SCALAR) if not kind.shape else h5py.h5s.create_simple(kind.shape)
    how = None
    if filter is not None and kind.nbytes >= _LEAST_FILTERED_BYTES and kind.shape:
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_chunk(_chunk_shape(kind.shape, stored.get_size()))
        how.set_shuffle()  # the exponents of floats stand beside each other, which is what compresses
        how.set_deflate(filter.gzip_level)
    made = h5py.h5d.create(group.id, name.encode(), stored, space, dcpl=how, lcpl=_UTF8_NAMES)
    if kind.nbytes:  # in the file's own type: HDF5 converts nothing
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers, mtype=stored)
    return h5py.Dataset(made)


def _chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Whole rows, as many as fit a chunk; of one row that does not fit, a part."""
    found, room = [1] * len(shape), max(1, _CHUNK_BYTES // itemsize)
    for place in reversed(range(len(shape))):
        found[place] = min(shape[place], room)
        room //= found[place]
        if not room:
            break
    return tuple(found)


def _in_order(array: Array) -> Array:
    return array.contiguous() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)


def stored_type(kind: LeafType) -> h5py.h5t.TypeID:
    """The HDF5 type of a leaf's elements: their bytes are those in memory."""
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
    """Store a small value for readers: as it is where HDF5 has its like, else as text, JSON (docs/format.md).

    A list or tuple of numbers of one type becomes a data set with one dimension.
    """
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
    """The items of a list or tuple, if they are bool, or float, or int of 64 bits, and all of one type."""
    if container_kind(value) not in ("list", "tuple"):
        return None
    kinds = set(map(type, value))
    dtype = {bool: np.bool_, float: np.float64, int: np.int64}.get(next(iter(kinds))) if len(kinds) == 1 else None
    try:
        return None if dtype is None else np.array(value, dtype=dtype)
    except OverflowError:
        return None


def _is_plain(value: Any) -> bool:
    """True if HDF5 can store such a value exactly: its strings end at NUL and have no lone surrogates."""
    kind = type(value)
    if kind is int:
        return bool(-_INT64_LIMIT <= value < _INT64_LIMIT)
    if kind is str:
        return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)
    if kind is bytes:
        return bool(value)
    if isinstance(value, np.generic):  # a long double has bits that are no part of its value
        return str(value.dtype.char) in "?bBhHiIlLqQefdFD"
    return value is None or kind in (bool, float, complex)
