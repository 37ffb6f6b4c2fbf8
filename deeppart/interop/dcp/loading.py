"""Load a DCP checkpoint in one process, without process groups and without executing anything that a file names."""

from __future__ import annotations

import io
import os
import pickle  # for its errors alone
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zstandard

from deeppart.errors import (
    CorruptFileError,
    DeeppartError,
    FormatError,
    StructureMismatchError,
    UnsupportedLeafError,
)
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, decoded
from deeppart.interop.dcp.metadata import DcpMetadata, Keys, Place, StoredTensor, read_metadata
from deeppart.interop.files import ForeignFile, HeldBytes
from deeppart.interop.opened import PIECE_BYTES
from deeppart.interop.torch_file.archive import Archive
from deeppart.interop.torch_file.loading import refusal, told_by_torch
from deeppart.part.format import short
from deeppart.state.tree.globs import covers, nearest_globs
from deeppart.state.tree.leaves import LeafType, dtype_name, new_array
from deeppart.state.tree.paths import readable

#: What ``torch.save`` adds to the bytes of a tensor, at most; the file of a value is no longer than this.
_FRAME_BYTES = 1 << 20
_MOST_VALUE_BYTES = 1 << 30
#: Of the numbers of parameters. Python does not write out those of thousands of digits.
_MOST_BITS = 64
_ZSTD = "stream.zstd/1"
#: Of an optimizer's ``state_dict()``.
_GROUPS = "param_groups"


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read a checkpoint that ``dcp.save`` or ``dcp.async_save`` has written, onto the CPU.

    Sharded tensors come back whole. One piece of a tensor is in memory beside the result at a time.

    Args:
        path: the directory: ``checkpoint_id`` of the save.
        keys: globs over paths as of :func:`deeppart.load`; only what they cover is read. None for everything.

    Returns:
        Dicts, whose keys are all texts, and lists, nested as they were. What a planner has saved without saying where
        it stood is in one dict, by name.

    Raises:
        RestoreError: there is no complete DCP checkpoint.
        FormatError: a file that is needed is damaged.
        UnsupportedLeafError: a value is of a kind that only unpickling could make, or was stored in a way that is not
            known.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.
    """
    directory = Path(path)
    metadata = read_metadata(directory)
    chosen = choose(metadata, keys, str(directory))
    with ExitStack() as files:
        opened = Files(directory, files)
        return nested_of(opened, metadata, [(name, _read(opened, metadata, name)) for name in chosen])


def choose(metadata: DcpMetadata, keys: str | Sequence[str] | None, where: str) -> list[str]:
    """The names of what globs over paths cover, sorted; None for all."""
    names = sorted(metadata.tensors.keys() | metadata.values.keys())
    chosen = [name for name in names if _is_chosen(path_of(metadata, name), keys)]
    if keys is not None and not chosen:
        known = [readable(path_of(metadata, name)) for name in names]
        near = dict.fromkeys(other for glob in _globs(keys) for other in nearest_globs(glob, known))
        raise StructureMismatchError(
            "nothing in the DCP checkpoint matches the keys asked for",
            expected=f"globs over {len(names)} paths such as {', '.join(near or known[:4])}",
            found=short(keys),
            where=where,
        )
    return chosen


def _globs(keys: str | Sequence[str]) -> Sequence[str]:
    return [keys] if isinstance(keys, str) else keys


def _is_chosen(path: Keys, keys: str | Sequence[str] | None) -> bool:
    if keys is None:
        return True
    patterns = _globs(keys)
    return any(covers(readable(path[:end]), patterns, container=end < len(path)) for end in range(1, len(path) + 1))


def path_of(metadata: DcpMetadata, name: str) -> Keys:
    """Where in the state something stood, as far as that is known."""
    return metadata.paths.get(name, (name,))


class Files:
    """The files of a directory, opened where they are needed and closed by a stack."""

    def __init__(self, directory: Path, closing: ExitStack) -> None:
        self._directory, self._closing = directory, closing
        self._open: dict[str, ForeignFile] = {}

    def file_of(self, place: Place) -> ForeignFile:
        """The file that a place is in."""
        if place.file not in self._open:
            self._open[place.file] = self._closing.enter_context(ForeignFile(self._directory / place.file))
        return self._open[place.file]

    def read(self, place: Place, most_bytes: int, name: str) -> io.BytesIO:
        """The bytes at a place, as they were before anything was done to them."""
        if place.length > most_bytes:
            raise CorruptFileError(
                "a piece of a DCP checkpoint is longer than what it holds",
                expected=f"at most {most_bytes} bytes",
                found=f"{place.length} bytes",
                where=f"{self._directory / place.file}, {name}",
            )
        where = f"{self._directory / place.file}, {name}"
        data: Any = self.file_of(place).read_at(place.offset, place.length)
        for transform in reversed(place.transforms):
            if transform not in _TRANSFORMS:
                raise UnsupportedLeafError(
                    "a DCP checkpoint was written with an extension that this library does not know",
                    expected=" or ".join(_TRANSFORMS),
                    found=short(transform),
                    where=where,
                    todo="load it by dcp.load with a FileSystemReader that has the extension registered",
                )
            data = _TRANSFORMS[transform](data, most_bytes, where)
        return io.BytesIO(data)


def _decompressed(data: Any, most_bytes: int, where: str) -> bytes:
    found = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as stream:
            # Piece by piece: it takes memory for as much as it is asked for.
            while piece := stream.read(min(PIECE_BYTES, most_bytes + 1 - len(found))):
                found += piece
    except zstandard.ZstdError as error:
        raise CorruptFileError("a piece of a DCP checkpoint is no zstd", found=str(error), where=where) from error
    if len(found) > most_bytes:
        raise CorruptFileError("a piece of a DCP checkpoint is longer than what it holds", where=where)
    return bytes(found)


#: What undoes an extension, by its name.
_TRANSFORMS: Mapping[str, Callable[[Any, int, str], bytes]] = {_ZSTD: _decompressed, DESCRIPTOR: decoded}


def _read(files: Files, metadata: DcpMetadata, name: str) -> Any:
    if name in metadata.tensors:
        return read_tensor(files, metadata.tensors[name], name)
    return read_value(files, metadata.values[name], name)


def read_value(files: Files, place: Place, name: str) -> Any:
    """What is no tensor."""
    return _unpacked(files.read(place, _MOST_VALUE_BYTES, name), f"{place.file}, {name}")


def new_tensor(stored: StoredTensor, name: str) -> torch.Tensor:
    """Memory for a tensor, which nobody has touched."""
    kind = LeafType("torch", dtype_name(stored.dtype, name), stored.shape)
    kind.check(name)
    for box, place in stored.chunks:
        nbytes = box.elements * kind.itemsize
        if not place.transforms and place.length < nbytes:
            raise CorruptFileError(
                "a piece of a DCP checkpoint is shorter than what it holds",
                expected=f"at least {nbytes} bytes for {kind.dtype}{list(box.sizes)}",
                found=f"{place.length} bytes",
                where=f"{place.file}, {name}",
            )
    made = new_array(kind)
    assert isinstance(made, torch.Tensor)
    return made


def read_tensor(files: Files, stored: StoredTensor, name: str) -> torch.Tensor:
    """A tensor, with one of its pieces in memory beside it."""
    found = new_tensor(stored, name)
    for box, place in stored.chunks:
        nbytes = box.elements * stored.dtype.itemsize
        piece = _unpacked(files.read(place, nbytes + _FRAME_BYTES, name), f"{place.file}, {name}")
        if not isinstance(piece, torch.Tensor) or (piece.dtype, tuple(piece.shape)) != (stored.dtype, box.sizes):
            is_tensor = isinstance(piece, torch.Tensor)
            raise CorruptFileError(
                "a piece of a DCP checkpoint is not what its metadata says",
                expected=f"{stored.dtype}{list(box.sizes)}",
                found=f"{piece.dtype}{list(piece.shape)}" if is_tensor else type(piece).__name__,
                where=f"{place.file}, {name}",
            )
        if piece.layout is not torch.strided or piece.is_meta:
            raise UnsupportedLeafError(
                "a tensor of a DCP checkpoint is of a kind that dcp.load does not load, either",
                expected="dense tensors",
                found="one without data" if piece.is_meta else str(piece.layout),
                where=f"{place.file}, {name}",
                todo="leave it out (keys=)",
            )
        with torch.no_grad():
            found[box.slices()].copy_(piece)
    return found


def _unpacked(data: io.BytesIO, where: str) -> Any:
    """What ``torch.save`` has written; nothing that it names is called but what ``weights_only`` allows.

    Its archive has a checksum of every record, at which ``torch.load`` does not look; nor whether records are
    compressed, or lie over each other, so that a few bytes would become many.
    """
    try:
        Archive(HeldBytes(data.getbuffer(), where)).check()
        return torch.load(data, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedLeafError(
            "a value of a DCP checkpoint is of a kind that only unpickling could make, which might execute anything",
            found=refusal(error, where).found,
            where=where,
            todo="leave it out (keys=), or load it by torch if you trust the file, and save it as plain values",
        ) from error
    except DeeppartError:
        raise
    except Exception as error:  # of whatever kind: a damaged file raises anything
        raise CorruptFileError(
            "a piece of a DCP checkpoint cannot be read",
            found=f"{type(error).__name__}: {told_by_torch(error, lines=None)}",
            where=where,
        ) from error


def nested_of(files: Files, metadata: DcpMetadata, chosen: Sequence[tuple[str, Any]]) -> Any:
    """What was chosen, nested as it stood.

    If that is of an optimizer its state alone, the groups say which of its keys were numbers, and are left out again.
    """
    items = [(path_of(metadata, name), item) for name, item in chosen]
    places = {path[: path.index("state")] for path, _ in items if "state" in path}
    places = {place for place in places if not any(path[: len(place) + 1] == (*place, _GROUPS) for path, _ in items)}
    groups = [
        (path, read_value(files, place, name))
        for name, place in metadata.values.items()
        for path in [path_of(metadata, name)]
        if any(path[: len(each) + 1] == (*each, _GROUPS) for each in places)
    ]
    found = nested(items + groups)
    for place in {path[: path.index(_GROUPS)] for path, _ in groups}:
        inner = found
        for key in place:
            inner = inner[key]
        del inner[_GROUPS]
    return found


def nested(items: Iterable[tuple[Keys, Any]]) -> Any:
    """Dicts and lists of items and their paths."""
    root: dict[str | int, Any] = {}
    for path, item in items:
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, _Inner())
            if not isinstance(node, _Inner):
                raise CorruptFileError("paths of a DCP checkpoint contradict each other", found=readable(path))
        if path[-1] in node:
            raise CorruptFileError("paths of a DCP checkpoint contradict each other", found=readable(path))
        node[path[-1]] = item
    return _plain(root)


class _Inner(dict[str | int, Any]):
    """A container that is being filled; not a value."""


def _plain(node: dict[str | int, Any]) -> dict[str | int, Any] | list[Any]:
    """With lists in place of those that have numbers for keys; of some items alone, without the others."""
    items: Iterator[tuple[str | int, Any]] = (
        (key, _plain(child) if isinstance(child, _Inner) else child) for key, child in node.items()
    )
    if isinstance(node, _Inner) and node and all(type(key) is int for key in node):
        return [child for _, child in sorted(items, key=lambda item: item[0])]
    found = dict(items)
    if any(type(key) is int for key in found):
        raise FormatError("paths of a DCP checkpoint contradict each other", found=short(list(found)))
    return numbered(found)


def numbered(found: dict[str | int, Any]) -> dict[str | int, Any]:
    """With numbers again for the keys of an optimizer's state, of which DCP makes texts.

    ``load_state_dict`` of an optimizer takes a state whose keys are texts, and uses none of it.
    """
    groups, state = found.get(_GROUPS), found.get("state")
    if found.keys() == {"state", _GROUPS} and isinstance(groups, list) and isinstance(state, dict):
        listed = [group.get("params") for group in groups if isinstance(group, dict)]
        numbers = {str(each): each for of in listed if isinstance(of, list) for each in of if _is_number(each)}
        found["state"] = {numbers.get(key, key): item for key, item in state.items()}
    return found


def _is_number(each: Any) -> bool:
    return type(each) is int and each.bit_length() < _MOST_BITS
