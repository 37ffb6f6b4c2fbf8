"""Reading of DCP's ``.metadata`` without executing code that it names.

The file is a pickle of a few records (``torch/distributed/checkpoint/metadata.py``, ``filesystem.py``). The unpickler
maps each allowed name to an inert record class that only stores its arguments, and rejects all other names. The
records are validated before use.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from deeppart.errors import CorruptFileError, RestoreError, short
from deeppart.extension import Box, ForeignFile
from deeppart.interop.formats import METADATA_NAME, is_file_name
from deeppart.interop.opened import as_corrupt_file

#: A shard of a tensor takes 100 to 200 bytes.
_MAX_BYTES = 4 << 30
_DCP = "torch.distributed.checkpoint."
#: The names that occur in DCP's metadata.
_NAMES = frozenset(
    [(f"{_DCP}metadata", f"{kind}StorageMetadata") for kind in ("Tensor", "Bytes", "Chunk")]
    + [(f"{_DCP}metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")]
    + [(f"{_DCP}metadata", "_MEM_FORMAT_ENCODING"), (f"{_DCP}filesystem", "_StorageInfo")]
    + [("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")]
    + [(module, f"{system}Path") for module in ("pathlib", "pathlib._local") for system in ("Posix", "Windows")]
)
_DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}
_MAX_DEPTH = 200
_FROZEN = (tuple, frozenset)
#: A path: keys of dicts and indices of lists.
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FileRange:
    """A byte range of a file in the directory."""

    file: str
    offset: int
    length: int
    #: Names of the DCP extensions that encoded the bytes, in order (``stream.zstd/1``).
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A global tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    #: The boxes of its shards and their locations; none is empty, and they hold each element once.
    chunks: tuple[tuple[Box, FileRange], ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """The tensors and values of a DCP directory, by name."""

    tensors: Mapping[str, StoredTensor]
    values: Mapping[str, FileRange]
    #: Paths in the nested state, where known.
    paths: Mapping[str, Keys] = field(default_factory=dict)

    def path_of(self, name: str) -> Keys:
        """The path of an item; its name, if the path is not known."""
        return self.paths.get(name, (name,))


def read_metadata(directory: Path) -> DcpMetadata:
    """Read the metadata of a DCP directory."""
    path = directory / METADATA_NAME
    try:
        data = ForeignFile.read_all(path, _MAX_BYTES)
    except FileNotFoundError as error:
        raise RestoreError(
            "this is no DCP checkpoint, or one that was never completed",
            expected=f"a file {METADATA_NAME}",
            where=str(directory),
            todo="pass the directory that was the checkpoint_id of dcp.save()",
        ) from error
    return decode_metadata(data, str(path))


def decode_metadata(data: bytes, where: str) -> DcpMetadata:
    """Decode the bytes of a metadata file."""
    todo = "the file is damaged, or of a torch release with another format"
    with as_corrupt_file("the metadata of a DCP checkpoint cannot be read", where, todo):
        return _validate(_Unpickler(data, where).load(), where)


class _Record:
    """An unpickled object: stores its constructor arguments and state."""

    def __new__(cls, *arguments: Any) -> _Record:
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    arguments: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def part(self, name: str) -> Any:
        """An attribute."""
        return self.state[name]


#: Opcodes that add to dicts and sets -> slice of the stack with the keys.
_KEYS = {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}


def _checking_keys(keys: slice, load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap an opcode to reject nested tuples as keys: hashing deeply nested ones takes exponential time."""

    def checked(reader: Any) -> None:
        for key in reader.stack[keys]:
            if type(key) in _FROZEN and any(type(each) in _FROZEN for each in key):
                raise ValueError(f"a key {short(key)}")
        load(reader)

    return checked


class _Unpickler(pickle._Unpickler):
    """Creates records for DCP's names, and rejects all others.

    The record classes are created for each file, since a pickle can modify the classes that it names. The C
    implementation is faster, but its memo is an array, so that ten bytes of a pickle can exhaust all memory.
    """

    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data))
        self._where = where
        self._made = {name: type(name[1], (_Record,), {}) for name in _NAMES}

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{opcode[0]: _checking_keys(keys, pickle._Unpickler.dispatch[opcode[0]]) for opcode, keys in _KEYS.items()},
    }

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if (module, name) in self._made:
            return self._made[module, name]
        raise CorruptFileError(
            "the metadata of a DCP checkpoint names a class or function that DCP does not use",
            expected="records of torch.distributed.checkpoint",
            found=f"{short(module)}, {short(name)}",
            where=self._where,
            todo="do not load this checkpoint with torch, which may execute it",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise CorruptFileError(
            "the metadata of a DCP checkpoint refers to an external object", found=short(pid), where=self._where
        )


def _validate(found: Any, where: str) -> DcpMetadata:
    """Validate the records and convert them."""
    _expect_kind(found, "Metadata")
    locations = _locations(found.part("storage_data"))
    tensors: dict[str, StoredTensor] = {}
    values: dict[str, FileRange] = {}
    for name, what in dict(found.part("state_dict_metadata")).items():
        if type(name) is not str:
            raise ValueError(f"a name {short(name)}")
        if type(what).__name__ == "BytesStorageMetadata":
            values[name] = locations[name, None]
        else:
            _expect_kind(what, "TensorStorageMetadata")
            tensors[name] = _tensor(name, what, locations, where)
    return DcpMetadata(tensors, values, _paths(found.part("planner_data"), tensors.keys() | values.keys()))


def _tensor(
    name: str, what: Any, locations: Mapping[tuple[str, tuple[int, ...] | None], FileRange], where: str
) -> StoredTensor:
    shape, properties = _sizes(what.part("size")), what.part("properties")
    _expect_kind(properties, "TensorProperties")
    dtype = properties.state[0] if type(properties.state) is tuple else properties.part("dtype")
    if type(dtype) is not torch.dtype:
        raise ValueError(f"a dtype {short(dtype)}")
    chunks: dict[Box, FileRange] = {}
    for chunk in list(what.part("chunks")):
        _expect_kind(chunk, "ChunkStorageMetadata")
        box = Box(_sizes(chunk.part("offsets")), _sizes(chunk.part("sizes")))
        if not box.fits(shape):
            raise ValueError(f"{name}: {box} of a tensor of {shape}")
        if box.elements:
            chunks[box] = locations[name, box.offset]
    if fault := Box.fault_of_cover(chunks, shape):
        raise CorruptFileError(
            "a DCP checkpoint does not hold every element of a tensor exactly once",
            expected=f"all of {name}, {dtype}{list(shape)}",
            found=fault,
            where=where,
        )
    return StoredTensor(dtype, shape, tuple(chunks.items()))


def _locations(found: Any) -> dict[tuple[str, tuple[int, ...] | None], FileRange]:
    """(name, offset of the shard, or None for a value) -> location."""
    locations: dict[tuple[str, tuple[int, ...] | None], FileRange] = {}
    for index, info in dict(found).items():
        _expect_kind(index, "MetadataIndex")
        _expect_kind(info, "_StorageInfo")
        file, transforms = info.part("relative_path"), info.state.get("transform_descriptors") or ()
        offset, length = info.part("offset"), info.part("length")
        if not is_file_name(file):
            raise ValueError(f"a file {short(file)}")
        if any(type(each) is not int or each < 0 for each in (offset, length)):
            raise ValueError(f"bytes {short(offset)}, {short(length)}")
        if any(type(each) is not str for each in transforms):
            raise ValueError(f"transforms {short(transforms)}")
        box_offset, fqn = index.state.get("offset"), index.part("fqn")
        if type(fqn) is not str:
            raise ValueError(f"a name {short(fqn)}")
        key = fqn, None if box_offset is None else _sizes(box_offset)
        locations.setdefault(key, FileRange(file, offset, length, tuple(transforms)))
    return locations


def _paths(found: Any, names: Any) -> dict[str, Keys]:
    """The path of each name, from ``planner_data`` of DefaultSavePlanner; other planners store other data there."""
    if type(found) is not dict:
        return {}
    paths: dict[str, Keys] = {
        name: path
        for name, path in found.items()
        if name in names and type(path) is tuple and path and all(_is_key(key) for key in path)
    }
    for name, path in paths.items():
        if len(path) > _MAX_DEPTH:
            raise ValueError(f"{short(name)}: more than {_MAX_DEPTH} nested containers")
    return paths


def _is_key(key: Any) -> bool:
    return type(key) is str or (type(key) is int and 0 <= key < 1 << 62)


def _sizes(size: Any) -> tuple[int, ...]:
    """The integers of a ``torch.Size``."""
    _expect_kind(size, "Size")
    (numbers,) = size.arguments
    found = tuple(numbers)
    if any(type(each) is not int or not 0 <= each < 1 << 62 for each in found):
        raise ValueError(f"sizes {short(found)}")
    return found


def _expect_kind(found: Any, name: str) -> None:
    if not isinstance(found, _Record) or type(found).__name__ != name:
        raise ValueError(f"expected {name}, found {short(type(found).__name__)}")
