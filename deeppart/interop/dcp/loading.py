"""DCP checkpoints in one process, without process groups and without executing anything that a file names."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zstandard

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import Box, ForeignFile, LeafType, choose, leaf_bytes, readable
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, decoded
from deeppart.interop.dcp.metadata import DcpMetadata, FileRange, Keys, StoredTensor, read_metadata
from deeppart.interop.dcp.names import GROUPS, nested
from deeppart.interop.opened import PIECE_BYTES, Opened, Source, address_of
from deeppart.interop.torch_file import check_archive, read_by_torch

#: What ``torch.save`` adds to the bytes of a tensor, at most; the file of a value is no longer than this.
_FRAME_BYTES = 1 << 20
_MOST_VALUE_BYTES = 1 << 30
_ZSTD = "stream.zstd/1"


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read a checkpoint that ``dcp.save`` or ``dcp.async_save`` has written, onto the CPU.

    Sharded tensors come back whole. One that is not divided by rows, or was compressed, is in memory twice while it is
    read.

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
    with ExitStack() as closing:
        return open_dcp(Path(path), closing, keys).load()


def open_dcp(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open it; values are read, tensors are not yet."""
    metadata = read_metadata(path)
    files = Files(path, closing)
    sources: dict[int, Source] = {}
    items: list[tuple[str, Any]] = []
    for name in _choose(metadata, keys, str(path)):
        if name in metadata.values:
            items.append((name, read_value(files, metadata.values[name], name)))
            continue
        stored = metadata.tensors[name]
        tensor = new_tensor(stored, f"{path}, {name}")
        if tensor.nbytes:
            sources[address_of(tensor)] = _Pieces(files, stored, name, tensor.nbytes)
        items.append((name, tensor))
    places = {place.file for stored in metadata.tensors.values() for _, place in stored.chunks}
    places |= {each.file for each in metadata.values.values()}
    return Opened("dcp", _nested_state(files, metadata, items), sources, len(places))


def _choose(metadata: DcpMetadata, keys: str | Sequence[str] | None, where: str) -> list[str]:
    """The names of what globs over paths cover; None for all."""
    names = sorted(metadata.tensors.keys() | metadata.values.keys())
    if keys is None:
        return names
    left, found = [choose(_nested([(metadata.path_of(name), name) for name in names]), keys, where)], []
    while left:
        item = left.pop()
        if isinstance(item, str):
            found.append(item)
        else:
            left += list(item.values() if isinstance(item, dict) else item)[::-1]
    return found


def _nested_state(files: Files, metadata: DcpMetadata, chosen: Sequence[tuple[str, Any]]) -> Any:
    """What was chosen, nested as it stood.

    If that is of an optimizer its state alone, the groups say which of its keys were numbers, and are left out again.
    """
    items = [(metadata.path_of(name), item) for name, item in chosen]
    places = {path[: path.index("state")] for path, _ in items if "state" in path}
    places = {place for place in places if not any(path[: len(place) + 1] == (*place, GROUPS) for path, _ in items)}
    groups = [
        (path, read_value(files, place, name))
        for name, place in metadata.values.items()
        for path in [metadata.path_of(name)]
        if any(path[: len(each) + 1] == (*each, GROUPS) for each in places)
    ]
    found = _nested(items + groups)
    for place in {path[: path.index(GROUPS)] for path, _ in groups}:
        inner = found
        for key in place:
            inner = inner[key]
        del inner[GROUPS]
    return found


def _nested(items: Iterable[tuple[Keys, Any]]) -> Any:
    def refusal(path: Keys) -> CorruptFileError:
        return CorruptFileError("paths of a DCP checkpoint contradict each other", found=readable(path))

    return nested(items, refusal)


class Files:
    """The files of a directory, opened where they are needed and closed by a stack."""

    def __init__(self, directory: Path, closing: ExitStack) -> None:
        self._directory, self._closing = directory, closing
        self._open: dict[str, ForeignFile] = {}

    def file_of(self, place: FileRange) -> ForeignFile:
        """The file that a place is in."""
        if place.file not in self._open:
            self._open[place.file] = self._closing.enter_context(ForeignFile(self._directory / place.file))
        return self._open[place.file]

    def read(self, place: FileRange, most_bytes: int, name: str) -> bytes | memoryview:
        """The bytes at a place, as they were before anything was done to them."""
        where = f"{self._directory / place.file}, {name}"
        if place.length > most_bytes:
            raise CorruptFileError(
                "a piece of a DCP checkpoint is longer than what it holds",
                expected=f"at most {most_bytes} bytes",
                found=f"{place.length} bytes",
                where=where,
            )
        data: bytes | memoryview = self.file_of(place).read_at(place.offset, place.length)
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
        return data


def _decompressed(data: Any, most_bytes: int, where: str) -> bytes:
    found = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as stream:
            # Piece by piece: it allocates as much memory as is requested.
            while piece := stream.read(min(PIECE_BYTES, most_bytes + 1 - len(found))):
                found += piece
    except zstandard.ZstdError as error:
        raise CorruptFileError("a piece of a DCP checkpoint is no zstd", found=str(error), where=where) from error
    if len(found) > most_bytes:
        raise CorruptFileError("a piece of a DCP checkpoint is longer than what it holds", where=where)
    return bytes(found)


#: What undoes an extension, by its name.
_TRANSFORMS: Mapping[str, Callable[[Any, int, str], bytes]] = {_ZSTD: _decompressed, DESCRIPTOR: decoded}


def read_value(files: Files, place: FileRange, name: str) -> Any:
    """What is no tensor."""
    return _unpacked(files.read(place, _MOST_VALUE_BYTES, name), f"{place.file}, {name}")


def new_tensor(stored: StoredTensor, name: str) -> torch.Tensor:
    """Untouched memory for a tensor."""
    kind = LeafType.of_torch(stored.dtype, stored.shape, name)
    for box, place in stored.chunks:
        nbytes = box.elements * kind.itemsize
        if not place.transforms and place.length < nbytes:
            raise CorruptFileError(
                "a piece of a DCP checkpoint is shorter than what it holds",
                expected=f"at least {nbytes} bytes for {kind.dtype}{list(box.sizes)}",
                found=f"{place.length} bytes",
                where=f"{place.file}, {name}",
            )
    made = kind.new()
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


def _unpacked(data: bytes | memoryview, where: str) -> Any:
    """What ``torch.save`` has written."""
    file = io.BytesIO(data)
    check_archive(file, where)
    file.seek(0)
    return read_by_torch(file, where)


class _Pieces:
    """The bytes of a tensor: one piece after the other if each has whole rows of it, otherwise assembled."""

    def __init__(self, files: Files, stored: StoredTensor, name: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._files, self._name = files, name
        by_rows = all(box.sizes[1:] == stored.shape[1:] for box, _ in stored.chunks)
        chunks = sorted(stored.chunks, key=lambda chunk: chunk[0].offset)
        #: What is read at once.
        self._parts = [stored]
        if by_rows:
            boxes = ((Box.whole(box.sizes), place) for box, place in chunks)
            self._parts = [StoredTensor(stored.dtype, box.sizes, ((box, place),)) for box, place in boxes]
        self._current: tuple[int, memoryview] | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        view, begins = buffer.cast("B"), 0
        for number, part in enumerate(self._parts):
            ends = begins + math.prod(part.shape) * part.dtype.itemsize
            first, last = max(start, begins), min(start + view.nbytes, ends)
            if first < last:
                view[first - start : last - start] = self._bytes_of(number)[first - begins : last - begins]
                if last == ends:
                    self._current = None
            begins = ends

    def _bytes_of(self, number: int) -> memoryview:
        if self._current is None or self._current[0] != number:
            self._current = None  # frees it before the next one is allocated
            self._current = number, leaf_bytes(read_tensor(self._files, self._parts[number], self._name)).data
        return self._current[1]
