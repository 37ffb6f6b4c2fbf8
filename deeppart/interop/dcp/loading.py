"""DCP checkpoints in one process, without process groups and without executing anything that a file names."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zstandard

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import ForeignFile, LeafType, choose, leaf_bytes, readable
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, decoded
from deeppart.interop.dcp.metadata import DcpMetadata, FileRange, Keys, StoredTensor, read_metadata
from deeppart.interop.dcp.names import GROUPS, nested
from deeppart.interop.opened import PIECE_BYTES, Opened, Source, address_of
from deeppart.interop.torch_file import Archive, open_archive, read_by_torch

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
    """What ``torch.save`` has written; nothing that it names is called but what ``weights_only`` allows.

    Its archive has a checksum of every record, at which ``torch.load`` does not look; nor whether records are
    compressed, or lie over each other, so that a few bytes would become many.
    """
    Archive(ForeignFile.holding(data, where)).check()
    return read_by_torch(data, where)


class _Pieces:
    """The bytes of a tensor: one piece or rows straight from the files, otherwise assembled."""

    def __init__(self, files: Files, stored: StoredTensor, name: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._files, self._stored, self._name = files, stored, name
        self._rows: list[tuple[int, Source]] | None = None
        self._whole: memoryview | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        stop, view = start + buffer.nbytes, buffer.cast("B")
        if self._rows is None and self._whole is None:
            self._rows = self._find_rows()
        if self._rows is not None:
            for begins, piece in self._rows:
                first, last = max(start, begins), min(stop, begins + piece.nbytes)
                if first < last:
                    piece.read_into(first - begins, view[first - start : last - start])
            return
        if self._whole is None:
            self._whole = leaf_bytes(read_tensor(self._files, self._stored, self._name)).data
        view[:] = self._whole[start:stop]
        if stop == self.nbytes:
            self._whole = None

    def check(self) -> None:
        """Compare what was not; pieces that are put together were all read."""
        for _, piece in self._rows or ():
            piece.check()

    def _find_rows(self) -> list[tuple[int, Source]] | None:
        """First byte and source of each piece, if every piece is whole rows of the tensor, lying in a row in a file."""
        shape, rows = self._stored.shape, list[tuple[int, Source]]()
        if any(place.transforms or box.sizes[1:] != shape[1:] for box, place in self._stored.chunks):
            return None
        row_bytes = self.nbytes // shape[0] if shape else 0
        for box, place in sorted(self._stored.chunks, key=lambda chunk: chunk[0].offset):
            source = self._open_piece(box, place)
            if source is None:
                return None
            rows.append((box.offset[0] * row_bytes if shape else 0, source))
        return rows

    def _open_piece(self, box: Any, place: FileRange) -> Source | None:
        """Where the elements of a piece are; None if they do not lie there in C order, and nothing else with them."""
        found = open_archive(
            Archive(self._files.file_of(place), place.offset, place.length, f"{place.file}, {self._name}")
        )
        if found is None:
            return None
        piece, sources = found
        sound = isinstance(piece, torch.Tensor) and piece.is_contiguous() and tuple(piece.shape) == box.sizes
        if not sound or piece.dtype is not self._stored.dtype or piece.storage_offset():
            return None  # read in the other way, which says what is wrong
        source = sources.get(address_of(piece))
        return source if source is not None and source.nbytes == piece.nbytes else None
