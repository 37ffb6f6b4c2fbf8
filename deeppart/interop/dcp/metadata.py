"""The metadata of a DCP directory, read without executing anything that it names.

``.metadata`` is a pickle of a few records (``torch/distributed/checkpoint/metadata.py``, ``filesystem.py``). A pickle
says which classes and functions to call: here there are none but those made for one reading, which keep what they are
given. Whatever else a file names is refused, and what it says is checked before anyone uses it.
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
from deeppart.interop.formats import METADATA_NAME, is_plain_name

#: A hundred bytes or two for each shard of each tensor.
_LIMIT_BYTES = 4 << 30
_DCP = "torch.distributed.checkpoint."
#: What DCP's metadata names, and nothing else.
_NAMES = frozenset(
    {
        (f"{_DCP}metadata", "Metadata"),
        (f"{_DCP}metadata", "TensorStorageMetadata"),
        (f"{_DCP}metadata", "BytesStorageMetadata"),
        (f"{_DCP}metadata", "ChunkStorageMetadata"),
        (f"{_DCP}metadata", "TensorProperties"),
        (f"{_DCP}metadata", "MetadataIndex"),
        (f"{_DCP}metadata", "StorageMeta"),
        (f"{_DCP}metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib._local", "WindowsPath"),
        ("collections", "OrderedDict"),
    }
)
_DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}
#: Containers inside each other, of which a path leads through.
_DEEPEST_NESTING = 200
_FROZEN = (tuple, frozenset)
#: Keys of nested dicts and places in lists.
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FileRange:
    """Where something is stored: bytes of a file in the directory."""

    file: str
    offset: int
    length: int
    #: What was done to the bytes, in order, as DCP's extensions name themselves (``stream.zstd/1``).
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    #: The boxes that it is stored in, and where; together all of it, no element twice. None of them is empty.
    chunks: tuple[tuple[Box, FileRange], ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """What is in a DCP directory, by name: tensors, and where anything else is stored."""

    tensors: Mapping[str, StoredTensor]
    values: Mapping[str, FileRange]
    #: Where in the nested state something stood, if that is known.
    paths: Mapping[str, Keys] = field(default_factory=dict)

    def path_of(self, name: str) -> Keys:
        """Where in the state something stood, as far as that is known."""
        return self.paths.get(name, (name,))


def read_metadata(directory: Path) -> DcpMetadata:
    """What a DCP directory says that it holds."""
    path = directory / METADATA_NAME
    try:
        data = ForeignFile.read_all(path, _LIMIT_BYTES)
    except FileNotFoundError as error:
        raise RestoreError(
            "this is no DCP checkpoint, or one that was never completed",
            expected=f"a file {METADATA_NAME}",
            where=str(directory),
            todo="name the directory that dcp.save() was given as checkpoint_id",
        ) from error
    return decode_metadata(data, str(path))


def decode_metadata(data: bytes, where: str) -> DcpMetadata:
    """The same, from the bytes of the file."""
    try:
        found = _Reader(data, where).load()
        return _checked(found, where)
    except CorruptFileError:
        raise
    except Exception as error:  # of whatever kind: a damaged pickle raises anything
        raise CorruptFileError(
            "the metadata of a DCP checkpoint cannot be read",
            found=f"{type(error).__name__}: {short(str(error))}",
            where=where,
            todo="the file is damaged, or of a release of torch that writes something else",
        ) from error


class _Record:
    """Stands for an object of a pickle: keeps what it was made with and what was put into it."""

    def __new__(cls, *arguments: Any) -> _Record:
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    arguments: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def part(self, name: str) -> Any:
        """An attribute that it was given."""
        return self.state[name]


#: What puts something into dicts and sets -> which of the items on the stack are keys.
_KEYS = {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}


def _looking_at(keys: slice, load: Callable[[Any], None]) -> Callable[[Any], None]:
    """What does the same, but refuses nested keys: the hash of a pair of one pair of one pair ... has no end."""

    def checked(reader: Any) -> None:
        for key in reader.stack[keys]:
            if type(key) in _FROZEN and any(type(each) in _FROZEN for each in key):
                raise ValueError(f"a key {short(key)}")
        load(reader)

    return checked


class _Reader(pickle._Unpickler):
    """Makes a record of whatever is one of DCP's, and refuses all else.

    The classes are made for each reading: a pickle can change the classes that it names. The interpreter's own reader
    (``pickle.Unpickler``) is faster, and ten bytes make it fill all memory: it keeps what a pickle numbers in an array.
    """

    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data))
        self._data, self._where = data, where
        self._made = {name: type(name[1], (_Record,), {}) for name in _NAMES}

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{opcode[0]: _looking_at(keys, pickle._Unpickler.dispatch[opcode[0]]) for opcode, keys in _KEYS.items()},
    }

    def load(self) -> Any:
        """As the base class does, but for frames, which are for files that are read little by little: all is here.

        A shard takes a hundred opcodes. To cut each out of its frame takes as long as all the rest.
        """
        data = io.BytesIO(self._data)
        self.read, self.readline, self.readinto = data.read, data.readline, data.readinto
        self.metastack: list[Any] = []
        self.stack: list[Any] = []
        self.append, self.proto = self.stack.append, 0
        read, dispatch = data.read, dict[int, Any](self.dispatch)
        dispatch[pickle.FRAME[0]] = lambda reader: read(8)
        try:
            while key := read(1):
                dispatch[key[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        raise EOFError

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if (module, name) in self._made:
            return self._made[module, name]
        raise CorruptFileError(
            "the metadata of a DCP checkpoint names something that none has",
            expected="records of torch.distributed.checkpoint",
            found=f"{short(module)}, {short(name)}",
            where=self._where,
            todo="do not load this checkpoint with torch, which would call it",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise CorruptFileError(
            "the metadata of a DCP checkpoint refers to something outside of it", found=short(pid), where=self._where
        )


def _checked(found: Any, where: str) -> DcpMetadata:
    """What the records say, in records of ours."""
    _expect_kind(found, "Metadata")
    places = _places(found.part("storage_data"))
    tensors: dict[str, StoredTensor] = {}
    values: dict[str, FileRange] = {}
    for name, what in dict(found.part("state_dict_metadata")).items():
        if type(name) is not str:
            raise ValueError(f"a name {short(name)}")
        if type(what).__name__ == "BytesStorageMetadata":
            values[name] = places[name, None]
        else:
            _expect_kind(what, "TensorStorageMetadata")
            tensors[name] = _tensor(name, what, places, where)
    return DcpMetadata(tensors, values, _paths(found.part("planner_data"), tensors.keys() | values.keys()))


def _tensor(
    name: str, what: Any, places: Mapping[tuple[str, tuple[int, ...] | None], FileRange], where: str
) -> StoredTensor:
    shape, properties = _numbers(what.part("size")), what.part("properties")
    _expect_kind(properties, "TensorProperties")
    dtype = properties.state[0] if type(properties.state) is tuple else properties.part("dtype")
    if type(dtype) is not torch.dtype:
        raise ValueError(f"a dtype {short(dtype)}")
    chunks: dict[Box, FileRange] = {}
    for chunk in list(what.part("chunks")):
        _expect_kind(chunk, "ChunkStorageMetadata")
        box = Box(_numbers(chunk.part("offsets")), _numbers(chunk.part("sizes")))
        if not box.fits(shape):
            raise ValueError(f"{name}: {box} of a tensor of {shape}")
        if box.elements:
            chunks[box] = places[name, box.offset]
    if fault := Box.fault_of_cover(chunks, shape):
        raise CorruptFileError(
            "a DCP checkpoint does not hold every element of a tensor exactly once",
            expected=f"all of {name}, {dtype}{list(shape)}",
            found=fault,
            where=where,
        )
    return StoredTensor(dtype, shape, tuple(chunks.items()))


def _places(found: Any) -> dict[tuple[str, tuple[int, ...] | None], FileRange]:
    places: dict[tuple[str, tuple[int, ...] | None], FileRange] = {}
    for index, info in dict(found).items():
        _expect_kind(index, "MetadataIndex")
        _expect_kind(info, "_StorageInfo")
        file, transforms = info.part("relative_path"), info.state.get("transform_descriptors") or ()
        offset, length = info.part("offset"), info.part("length")
        if not is_plain_name(file):
            raise ValueError(f"a file {short(file)}")
        if any(type(each) is not int or each < 0 for each in (offset, length)):
            raise ValueError(f"bytes {short(offset)}, {short(length)}")
        if any(type(each) is not str for each in transforms):
            raise ValueError(f"transforms {short(transforms)}")
        begins, fqn = index.state.get("offset"), index.part("fqn")
        if type(fqn) is not str:
            raise ValueError(f"a name {short(fqn)}")
        name = fqn, None if begins is None else _numbers(begins)
        places.setdefault(name, FileRange(file, offset, length, tuple(transforms)))
    return places


def _paths(found: Any, names: Any) -> dict[str, Keys]:
    """Where in the state each name stood; what other planners leave here says nothing of that."""
    if type(found) is not dict:
        return {}
    paths: dict[str, Keys] = {
        name: path
        for name, path in found.items()
        if name in names and type(path) is tuple and path and all(_is_key(key) for key in path)
    }
    for name, path in paths.items():
        if len(path) > _DEEPEST_NESTING:
            raise ValueError(f"{short(name)}: more than {_DEEPEST_NESTING} containers inside each other")
    return paths


def _is_key(key: Any) -> bool:
    return type(key) is str or (type(key) is int and 0 <= key < 1 << 62)


def _numbers(size: Any) -> tuple[int, ...]:
    """Of a ``torch.Size``."""
    _expect_kind(size, "Size")
    (numbers,) = size.arguments
    found = tuple(numbers)
    if any(type(each) is not int or not 0 <= each < 1 << 62 for each in found):
        raise ValueError(f"sizes {short(found)}")
    return found


def _expect_kind(found: Any, name: str) -> None:
    if not isinstance(found, _Record) or type(found).__name__ != name:
        raise ValueError(f"{short(type(found).__name__)} where {name} should be")
