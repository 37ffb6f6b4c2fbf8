"""Reading and writing of safetensors files, and of Hugging Face's directories of them, with or without an index.

    8 bytes: length of the header, little endian | header, JSON, padded with blanks | the bytes of all tensors

The header has names, dtypes, shapes and offsets of tensors (https://github.com/huggingface/safetensors, "Format"). As
in that library, the tensors must fill the file without gaps or overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deeppart import __version__
from deeppart.errors import CorruptFileError, RestoreError, StateError, UnsupportedLeafError, short
from deeppart.extension import Content, ForeignFile, LeafType, Source, decode, encode, readable
from deeppart.interop.formats import INDEX_SUFFIX, SUFFIX, is_file_name
from deeppart.interop.opened import FileSpan, Opened, address_of
from deeppart.interop.outline import arrays_remark, first_names, torch_dtype_name

#: Metadata key of the small values of a state, written by `deeppart export`.
VALUES = "deeppart.values"
_MAX_INDEX_BYTES = 1 << 30
LENGTH_BYTES = 8
#: Limit of the safetensors library.
MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 64
METADATA = "__metadata__"
#: Metadata key of the framework, usually "pt"; not an alias of a tensor "pt".
FORMAT = "format"
#: torch dtype -> name in a header.
NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {name: getattr(torch, dtype) for dtype, name in NAMES.items() if hasattr(torch, dtype)}
_PAIRS = "F4"  # torch counts two elements as one byte


def open_safetensors(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open the files and read their headers.

    The path is a ``.safetensors`` file, a ``.safetensors.index.json``, or a directory with either. The state is a dict
    of tensors by name; aliases in the metadata (``save_model``) are tied, and small values there are included.
    """
    weight_map: dict[str, str] | None = None
    if (names := ForeignFile.names_in(path)) is not None:
        folder = path
        indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
        files = [name for name in names if name.endswith(SUFFIX)]
        if len(indexes) == 1 and not (len(files) == 1 and files[0] == "model" + SUFFIX):
            weight_map = _read_index(folder / indexes[0])
    elif path.name.endswith(INDEX_SUFFIX):
        folder, files, weight_map = path.parent, [], _read_index(path)
    else:
        folder, files = path.parent, [path.name]
    if weight_map is not None:
        files = sorted(set(weight_map.values()))
    if not files:
        raise RestoreError(
            "there are no safetensors files", expected=f"a file *{SUFFIX}, or an index *{INDEX_SUFFIX}", where=str(path)
        )
    opened = _open_files(folder, files, weight_map, closing)
    opened.choose(keys, str(path))
    return opened


def _open_files(folder: Path, files: Sequence[str], weight_map: Mapping[str, str] | None, closing: ExitStack) -> Opened:
    state: dict[str, Any] = {}
    sources: dict[int, Source] = {}
    metadata: dict[str, str] = {}
    for name in files:
        file = closing.enter_context(ForeignFile(folder / name))
        header = read_header(file)
        metadata |= header.metadata
        for key, entry in header.entries.items():
            if key in state:
                raise CorruptFileError(
                    "two files hold a tensor of one name", found=short(key), where=str(folder / name)
                )
            tensor = LeafType.of_torch(entry.dtype, entry.shape, f"{file.path}, {key}").new()
            assert isinstance(tensor, torch.Tensor)
            state[key] = tensor
            if entry.nbytes:
                sources[address_of(tensor)] = FileSpan(file, entry.offset, entry.nbytes)
    if weight_map is not None and (missing := sorted(weight_map.keys() - state.keys())):
        raise CorruptFileError(
            "a tensor is missing from the file that the index names",
            expected=f"{short(missing[0])} in {weight_map[missing[0]]}",
            where=str(folder),
            todo="a file is from another version of the model: download all of them again",
        )
    _add_metadata(state, metadata, str(folder))
    return Opened("safetensors", state, sources, len(files))


def read_header(file: ForeignFile) -> Header:
    """Read the header of a file."""
    prefix = bytes(file.read_at(0, min(LENGTH_BYTES, file.size)))
    length = int.from_bytes(prefix, "little")
    limit = min(MAX_HEADER_BYTES, file.size - LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES or not 2 <= length <= limit:
        raise CorruptFileError(
            "this is not a safetensors file, or it is damaged",
            expected=f"a header of 2 to {max(2, limit)} bytes",
            found=f"{length} bytes, in a file of {file.size}",
            where=file.path,
        )
    data = bytes(file.read_at(LENGTH_BYTES, length))
    return decode_header(data, file.size - LENGTH_BYTES - length, file.path)


def _add_metadata(state: dict[str, Any], metadata: Mapping[str, str], where: str) -> None:
    """Add aliases of tensors (``safetensors.torch.save_model``) and small values (``deeppart export``)."""
    for name, other in metadata.items():
        if name not in state and name != FORMAT and isinstance(state.get(other), torch.Tensor):
            state[name] = state[other]
    if VALUES not in metadata:
        return
    try:
        values = json.loads(metadata[VALUES])
        found = {name: decode(value, where) for name, value in values.items()}
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptFileError("the small values in the metadata are damaged", where=where) from error
    if found.keys() & state.keys():
        raise CorruptFileError("a value has the name of a tensor", found=short(min(found.keys() & state.keys())))
    state |= found


def _read_index(path: Path) -> dict[str, str]:
    """Read an index: tensor name -> file name."""
    try:
        found = json.loads(ForeignFile.read_all(path, _MAX_INDEX_BYTES))["weight_map"]
        sound = type(found) is dict and all(is_file_name(name) and name.endswith(SUFFIX) for name in found.values())
    except FileNotFoundError as error:
        raise RestoreError("the index does not exist", where=str(path)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            "an index of safetensors files is damaged", found=f"{type(error).__name__}: {error}"[:200], where=str(path)
        ) from error
    if not sound:
        raise CorruptFileError(
            "an index of safetensors files leads out of its directory", expected="file names", where=str(path)
        )
    return {str(name): file for name, file in found.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: torch dtype, shape, and byte range."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors and metadata of a file, by name."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def decode_header(data: bytes, payload_bytes: int, where: str) -> Header:
    """Decode and check a header."""
    try:
        if not data.startswith(b"{"):
            raise ValueError(f"begins with {data[:8]!r}")
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        metadata = found.pop(METADATA, None)
        metadata = {} if metadata is None else metadata  # as the library does
        if type(metadata) is not dict or not all(type(text) is str for text in metadata.values()):
            raise ValueError("metadata are not a dict of strings")
        entries = {name: _entry(name, entry, LENGTH_BYTES + len(data)) for name, entry in found.items()}
        _check_ranges(entries, LENGTH_BYTES + len(data), payload_bytes)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise CorruptFileError(
            "the header of a safetensors file is damaged",
            found=f"{type(error).__name__}: {short(str(error))}",
            where=where,
            todo="it was not copied or downloaded completely, or has been overwritten: fetch it again",
        ) from error
    return Header(entries, metadata)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(name: str, found: Any, payload_offset: int) -> Entry:
    if found.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: fields {short(list(found))}")
    shape, offsets = found["shape"], found["data_offsets"]
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or any(not _is_count(each) for each in shape):
        raise ValueError(f"{name}: shape {short(str(shape))}")
    if type(offsets) is not list or len(offsets) != 2 or any(not _is_count(each) for each in offsets):
        raise ValueError(f"{name}: data_offsets {short(str(offsets))}")
    if type(found["dtype"]) is not str or found["dtype"] not in _DTYPES:
        raise ValueError(f"{name}: dtype {short(found['dtype'])}, which this torch does not support")
    dtype = _DTYPES[found["dtype"]]
    if found["dtype"] == _PAIRS:
        if not shape or shape[-1] % 2:
            raise ValueError(f"{name}: an odd number of 4-bit elements")
        shape = [*shape[:-1], shape[-1] // 2]
    nbytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise ValueError(f"{name}: {offsets[1] - offsets[0]} bytes for {dtype}{shape}")
    return Entry(dtype, tuple(shape), payload_offset + offsets[0], nbytes)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _check_ranges(entries: Mapping[str, Entry], offset: int, payload_bytes: int) -> None:
    end = offset + payload_bytes
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != offset:
            raise ValueError(
                f"bytes {min(offset, entry.offset)} to {max(offset, entry.offset)} belong to no tensor, or to two"
            )
        offset += entry.nbytes
    if offset != end:
        raise ValueError(f"the tensors end at byte {offset}, the file at {end}")


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """The header of a file, with its length."""
    document: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape, nbytes in tensors:
        listed = [*shape[:-1], shape[-1] * 2] if NAMES[dtype] == _PAIRS else list(shape)
        document[name] = {"dtype": NAMES[dtype], "shape": listed, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    data += b" " * (-len(data) % LENGTH_BYTES)
    if len(data) > MAX_HEADER_BYTES:
        raise StateError(
            "the names and small values are too large for the header of a safetensors file",
            expected=f"at most {MAX_HEADER_BYTES} bytes",
            found=f"{len(data)} bytes",
            todo="export only a part, such as the tensors (--keys), or to another format",
        )
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


class SafetensorsWriter:
    """Writes one file, or a directory with an index and files of at most ``max_shard_bytes``."""

    form = "safetensors"

    def __init__(self, max_shard_bytes: int | None = None) -> None:
        self._max_shard_bytes = max_shard_bytes
        self.is_directory = max_shard_bytes is not None

    def write(self, content: Content) -> list[str]:
        """Write the content."""
        content.refuse_repeats()
        names = _Names(content)
        tensors, ties = names.tensors()
        about = {"library": f"deeppart {__version__}", "step": str(content.step)}
        # Metadata whose value is the name of a tensor would be read as an alias of it.
        metadata = {FORMAT: "pt"} | {key: text for key, text in about.items() if text not in names.paths}
        extra = ties | ({VALUES: json.dumps(names.values)} if names.values else {})
        files = _FileWriter(content, sum(tensor.nbytes for tensor in tensors))
        if self._max_shard_bytes is None:
            with content.stream_to() as stream:
                files.write(stream, tensors, metadata | extra)
        else:
            _write_directory(files, tensors, metadata, extra, self._max_shard_bytes)
        remarks = list(arrays_remark(content))
        if ties:
            remarks.append(f"tied leaves are written once, with aliases in the metadata: {first_names(list(ties))}")
        if names.values:
            remarks.append(f"small values are in the metadata, as JSON, under {VALUES!r}")
        if names.empty:
            remarks.append(f"empty containers are not written: {first_names(names.empty)}")
        return remarks


def _write_directory(
    files: _FileWriter, tensors: list[_Tensor], metadata: dict[str, str], extra: dict[str, str], max_bytes: int
) -> None:
    """Write files and an index; ``extra`` metadata go into the first file."""
    shards: list[list[_Tensor]] = [[]]
    free = max_bytes
    for tensor in tensors:
        if shards[-1] and tensor.nbytes > free:
            shards.append([])
            free = max_bytes
        shards[-1].append(tensor)
        free -= tensor.nbytes
    is_sharded = len(shards) > 1
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if is_sharded else "model.safetensors"
        weight_map |= {tensor.name: name for tensor in shard}
        with files.content.file(name) as stream:
            files.write(stream, shard, metadata | (extra if number == 1 else {}))
    if is_sharded:
        index = {"metadata": {"total_size": files.total}, "weight_map": weight_map}
        with files.content.file("model.safetensors.index.json") as stream:
            stream.write(json.dumps(index, indent=2, ensure_ascii=False).encode("utf-8"))


class _Tensor(NamedTuple):
    """A leaf to write, with torch dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    leaf: int


class _FileWriter:
    """Writes files, and reports progress."""

    def __init__(self, content: Content, total: int) -> None:
        self.content, self.total, self._done = content, total, 0

    def write(self, stream: Any, tensors: Sequence[_Tensor], metadata: dict[str, str]) -> None:
        """Write one file."""
        stream.write(encode_header((tensor[:4] for tensor in tensors), metadata))
        for _, pieces in self.content.stream([tensor.leaf for tensor in tensors]):
            for piece in pieces:
                stream.write(piece)
                self._done += piece.nbytes
                self.content.progress(self._done, self.total)


class _Names:
    """The names of tensors and values: their paths joined by dots, as in a module's state_dict."""

    def __init__(self, content: Content) -> None:
        self._content = content
        #: Name -> path.
        self.paths: dict[str, str] = {}
        self._leaves: dict[int, str] = {}
        self.values: dict[str, Any] = {}
        self.empty: list[str] = []
        for row in content.rows():
            path = readable(row.path)
            if row.composite:
                raise UnsupportedLeafError(
                    f"safetensors does not support {row.composite} tensors",
                    where=f"path {readable(row.path[:-1])}",
                    todo="leave it out (--keys), or export to another format: --to torch or hdf5",
                )
            if row.leaf is not None:
                self._leaves[row.leaf] = self._name(row.path)
            elif row.is_empty:
                self.empty.append(path)
            else:
                self.values[self._name(row.path)] = encode(row.value, path)

    def tensors(self) -> tuple[list[_Tensor], dict[str, str]]:
        """The tensors in the order of writing, and aliases of tensors."""
        content, ties = self._content, dict[str, str]()
        found: list[_Tensor] = []
        for leaf, name in self._leaves.items():
            kind = content.types[leaf]
            if (owner := content.same_as(leaf)) is not None:
                ties[name] = self._leaves[owner]
                continue
            dtype = torch_dtype_name(content, leaf)
            if dtype not in NAMES or (dtype == "float4_e2m1fn_x2" and not kind.shape):
                raise UnsupportedLeafError(
                    "safetensors does not support the dtype of a leaf",
                    expected=", ".join(NAMES),
                    found=str(kind),
                    where=f"path {self.paths[name]}",
                    todo="leave it out (--keys), or export to another format: --to torch, dcp or hdf5",
                )
            found.append(_Tensor(name, dtype, kind.shape, kind.nbytes, leaf))
        # Wide elements first, so that each tensor is aligned; otherwise in the order of the parts.
        found.sort(key=lambda tensor: (-content.types[tensor.leaf].itemsize, tensor.leaf))
        return found, ties

    def _name(self, path: tuple[Any, ...]) -> str:
        name = ".".join(key if type(key) is str else readable((key,)) for key in path)
        is_text = not any("\ud800" <= character <= "\udfff" for character in name)
        if name in self.paths or name in (METADATA, FORMAT, VALUES) or not is_text:
            other = f"path {self.paths[name]} has it" if name in self.paths else "it is reserved or invalid"
            raise StateError(
                "a leaf cannot have the name that it would have in safetensors",
                found=f"{name!r}; {other}",
                where=f"path {readable(path)}",
                todo="leave one of them out (--keys), or export to another format: --to torch, dcp or hdf5",
            )
        self.paths[name] = readable(path)
        return name
