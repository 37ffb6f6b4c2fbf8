"""Files of safetensors, and directories of them as Hugging Face has them, with an index or without: read and written.

    8 bytes: length of the header, little endian | header, JSON, padded with blanks | the bytes of all tensors

The header has names, types and places of tensors (https://github.com/huggingface/safetensors, "Format"). What the
reader of that library checks is checked here: the places lie end to end and fill the file, so no byte belongs to two
tensors or to none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeppart import __version__
from deeppart.errors import CorruptFileError, RestoreError, StateError, UnsupportedLeafError, short
from deeppart.extension import Content, ForeignFile, LeafType, decode, encode, readable
from deeppart.interop.formats import INDEX_SUFFIX, SUFFIX, is_plain_name
from deeppart.interop.opened import FileSpan, Opened, Source, address_of
from deeppart.interop.outline import arrays_remark, some, torch_dtype_name

#: Under which `deeppart export` notes the small values of a state.
VALUES = "deeppart.values"
_MOST_INDEX_BYTES = 1 << 30
LENGTH_BYTES = 8
#: As the library has it: a longer header is refused.
MOST_HEADER_BYTES = 100_000_000
_MOST_DIMENSIONS = 64
METADATA = "__metadata__"
#: Of the metadata: what wrote the file, "pt" as a rule. It is no second name of a tensor "pt".
FORMAT = "format"
#: Names of dtypes in torch -> in a header.
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
_PAIRS = "F4"  # two elements in a byte, which torch counts as one


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
    if (names := ForeignFile.names_in(path)) is not None:
        folder = path
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
                sources[address_of(state[key])] = FileSpan(file, entry.offset, entry.nbytes)
    if placed is not None and (missing := sorted(placed.keys() - state.keys())):
        raise CorruptFileError(
            "a tensor is not in the file that the index names",
            expected=f"{short(missing[0])} in {placed[missing[0]]}",
            where=str(folder),
            todo="a file is of another release of the model: fetch all of them again",
        )
    _add_noted(state, notes, str(folder))
    return Opened("safetensors", state, sources, len(files))


def read_header(file: ForeignFile) -> Header:
    """The header of an open file."""
    prefix = bytes(file.read_at(0, min(LENGTH_BYTES, file.size)))
    length = check_length(prefix, file.size, file.path)
    data = bytes(file.read_at(LENGTH_BYTES, length))
    return decode_header(data, file.size - LENGTH_BYTES - length, file.path)


def _placeholder(entry: Entry, where: str) -> torch.Tensor:
    made = LeafType.of_torch(entry.dtype, entry.shape, where).new()
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
        found = {name: decode(value, where) for name, value in values.items()}
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptFileError("the values that were noted beside tensors are damaged", where=where) from error
    if found.keys() & state.keys():
        raise CorruptFileError("a value has the name of a tensor", found=short(min(found.keys() & state.keys())))
    state |= found


def _read_index(path: Path) -> dict[str, str]:
    """Name of a tensor -> name of a file beside the index."""
    try:
        found = json.loads(ForeignFile.read_all(path, _MOST_INDEX_BYTES))["weight_map"]
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: dtype and shape as torch has them, and its bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself: entries and texts, by name."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def check_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """Length of the header, of a file that begins with these bytes."""
    length = int.from_bytes(prefix, "little")
    most = min(MOST_HEADER_BYTES, file_bytes - LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES or not 2 <= length <= most:
        raise CorruptFileError(
            "this is no safetensors file, or a damaged one",
            expected=f"a header of 2 to {max(2, most)} bytes",
            found=f"{length} bytes, in a file of {file_bytes}",
            where=where,
        )
    return length


def decode_header(data: bytes, payload_bytes: int, where: str) -> Header:
    """A header, checked."""
    try:
        if not data.startswith(b"{"):
            raise ValueError(f"begins with {data[:8]!r}")
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_without_doubles)
        metadata = found.pop(METADATA, None)
        metadata = {} if metadata is None else metadata  # which the library takes for none, too
        if type(metadata) is not dict or not all(type(text) is str for text in metadata.values()):
            raise ValueError("metadata that is no table of texts")
        entries = {name: _entry(name, entry, LENGTH_BYTES + len(data)) for name, entry in found.items()}
        _check_places(entries, LENGTH_BYTES + len(data), payload_bytes)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise CorruptFileError(
            "the header of a safetensors file is damaged",
            found=f"{type(error).__name__}: {short(str(error))}",
            where=where,
            todo="it was not copied or downloaded completely, or something has written over it: fetch it again",
        ) from error
    return Header(entries, metadata)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entry(name: str, found: Any, payload_offset: int) -> Entry:
    if found.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: fields {short(list(found))}")
    shape, places = found["shape"], found["data_offsets"]
    if type(shape) is not list or len(shape) > _MOST_DIMENSIONS or any(not _is_count(each) for each in shape):
        raise ValueError(f"{name}: shape {short(str(shape))}")
    if type(places) is not list or len(places) != 2 or any(not _is_count(each) for each in places):
        raise ValueError(f"{name}: places {short(str(places))}")
    if type(found["dtype"]) is not str or found["dtype"] not in _DTYPES:
        raise ValueError(f"{name}: dtype {short(found['dtype'])}, which this torch does not have")
    dtype = _DTYPES[found["dtype"]]
    if found["dtype"] == _PAIRS:
        if not shape or shape[-1] % 2:
            raise ValueError(f"{name}: an odd number of half bytes")
        shape = [*shape[:-1], shape[-1] // 2]
    nbytes = math.prod(shape) * dtype.itemsize
    if places[1] - places[0] != nbytes:
        raise ValueError(f"{name}: {places[1] - places[0]} bytes for {dtype}{shape}")
    return Entry(dtype, tuple(shape), payload_offset + places[0], nbytes)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _check_places(entries: Mapping[str, Entry], offset: int, payload_bytes: int) -> None:
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
    """The first bytes of a file."""
    document: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape, nbytes in tensors:
        listed = [*shape[:-1], shape[-1] * 2] if NAMES[dtype] == _PAIRS else list(shape)
        document[name] = {"dtype": NAMES[dtype], "shape": listed, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    data += b" " * (-len(data) % LENGTH_BYTES)
    if len(data) > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {len(data)} bytes")
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


class SafetensorsWriter:
    """Writes one file, or a directory of files of at most ``max_shard_bytes`` with an index."""

    form = "safetensors"

    def __init__(self, max_shard_bytes: int | None = None) -> None:
        self._most = max_shard_bytes
        self.is_directory = max_shard_bytes is not None

    def write(self, content: Content) -> Any:
        """Write all of it."""
        content.refuse_repeats()
        names = _Names(content)
        tensors, ties = names.tensors()
        about = {"library": f"deeppart {__version__}", "step": str(content.step)}
        # A text that is the name of a tensor would say that what it stands under is another name of it.
        metadata = {FORMAT: "pt"} | {key: text for key, text in about.items() if not names.has(text)}
        notes = ties | ({VALUES: json.dumps(names.values)} if names.values else {})
        writing = _Writing(content, sum(tensor.nbytes for tensor in tensors))
        files = 1
        if self._most is None:
            with content.stream_to() as stream:
                writing.file(stream, tensors, metadata | notes)
        else:
            files = self._write_directory(writing, tensors, metadata, notes)
        remarks = list(arrays_remark(content))
        if ties:
            remarks.append(f"tied leaves stand there once, with their other names in the metadata: {some(list(ties))}")
        if names.values:
            remarks.append(f"small values are in the metadata, as JSON, under {VALUES!r}")
        if names.empty:
            remarks.append(f"containers with nothing in them are not there: {some(names.empty)}")
        return content.totals(remarks, files)

    def _write_directory(
        self, writing: _Writing, tensors: list[_Tensor], metadata: dict[str, str], notes: dict[str, str]
    ) -> int:
        shards: list[list[_Tensor]] = [[]]
        most = room = self._most or 0
        for tensor in tensors:
            if shards[-1] and tensor.nbytes > room:
                shards.append([])
                room = most
            shards[-1].append(tensor)
            room -= tensor.nbytes
        placed: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            many = len(shards) > 1
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else "model.safetensors"
            placed |= {tensor.name: name for tensor in shard}
            with writing.content.file(name) as stream:
                writing.file(stream, shard, metadata | (notes if number == 1 else {}))
        if len(shards) > 1:
            index = {"metadata": {"total_size": writing.total}, "weight_map": placed}
            with writing.content.file("model.safetensors.index.json") as stream:
                stream.write(json.dumps(index, indent=2, ensure_ascii=False).encode("utf-8"))
        return len(shards)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A leaf to write; dtype and shape as torch has them."""

    leaf: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class _Writing:
    """Writes files, and reports progress."""

    def __init__(self, content: Content, total: int) -> None:
        self.content, self.total, self._done = content, total, 0

    def file(self, stream: Any, tensors: Sequence[_Tensor], metadata: dict[str, str]) -> None:
        """Write one file."""
        rows = [(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) for tensor in tensors]
        try:
            header = encode_header(rows, metadata)
        except ValueError as error:
            raise StateError(
                "there are too many names, or too many small values, for the header of a safetensors file",
                expected=f"at most {MOST_HEADER_BYTES} bytes",
                found=str(error),
                todo="export some of it (--keys), the tensors alone for instance; or to another format",
            ) from error
        stream.write(header)
        for _, pieces in self.content.stream([tensor.leaf for tensor in tensors]):
            for piece in pieces:
                stream.write(piece)
                self._done += piece.nbytes
                self.content.progress(self._done, self.total)


class _Names:
    """The names of tensors and values: the keys on the way to them, joined by dots, as in a module's state_dict."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._paths: dict[str, str] = {}
        self._leaves: dict[int, str] = {}
        self.values: dict[str, Any] = {}
        self.empty: list[str] = []
        for row in content.rows():
            path = readable(row.path)
            if row.composite:
                raise UnsupportedLeafError(
                    f"safetensors has no {row.composite} tensors",
                    where=f"path {readable(row.path[:-1])}",
                    todo="leave it out (--keys), or export to another format: --to torch or hdf5",
                )
            if row.leaf is not None:
                self._leaves[row.leaf] = self._name(row.path)
            elif row.is_empty:
                self.empty.append(path)
            else:
                self.values[self._name(row.path)] = encode(row.value, path)

    def has(self, name: str) -> bool:
        """True if a leaf or value has it."""
        return name in self._paths

    def tensors(self) -> tuple[list[_Tensor], dict[str, str]]:
        """The tensors in the order in which they are written, and second names of them."""
        content, ties = self._content, dict[str, str]()
        found: list[tuple[int, _Tensor]] = []
        for leaf, name in self._leaves.items():
            kind = content.types[leaf]
            if (owner := content.same_as(leaf)) is not None:
                ties[name] = self._leaves[owner]
                continue
            dtype = torch_dtype_name(content, leaf)
            if dtype not in NAMES or (dtype == "float4_e2m1fn_x2" and not kind.shape):
                raise UnsupportedLeafError(
                    "safetensors has no dtype for a leaf",
                    expected=", ".join(NAMES),
                    found=str(kind),
                    where=f"path {self._paths[name]}",
                    todo="leave it out (--keys), or export to another format: --to torch, dcp or hdf5",
                )
            found.append((kind.itemsize, _Tensor(leaf, name, dtype, kind.shape, kind.nbytes)))
        # Wide elements first: so each begins at a multiple of its width. Otherwise in the order of the parts.
        found.sort(key=lambda pair: (-pair[0], pair[1].leaf))
        return [tensor for _, tensor in found], ties

    def _name(self, path: tuple[Any, ...]) -> str:
        name = ".".join(key if type(key) is str else readable((key,)) for key in path)
        is_text = not any("\ud800" <= character <= "\udfff" for character in name)
        if name in self._paths or name in (METADATA, FORMAT, VALUES) or not is_text:
            other = f"path {self._paths[name]} has it" if name in self._paths else "it means something else"
            raise StateError(
                "a leaf cannot have the name that it would have in safetensors",
                found=f"{name!r}; {other}",
                where=f"path {readable(path)}",
                todo="leave one of them out (--keys), or export to another format: --to torch, dcp or hdf5",
            )
        self._paths[name] = readable(path)
        return name
