"""Loading of DCP checkpoints in one process, without process groups or executing code that a file names."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zstandard

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import Box, ForeignFile, LeafType, Source, choose, leaf_bytes, readable
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, decode_stream
from deeppart.interop.dcp.metadata import DcpMetadata, FileRange, Keys, StoredTensor, read_metadata
from deeppart.interop.dcp.names import nest
from deeppart.interop.opened import Opened, address_of
from deeppart.interop.torch_file import check_archive, read_by_torch

#: Upper bound of what ``torch.save`` adds to a tensor's bytes.
_ARCHIVE_OVERHEAD = 1 << 20
_MAX_VALUE_BYTES = 1 << 30
#: Read at a time: each read allocates as much memory as it requests.
_PIECE_BYTES = 1 << 20


def open_dcp(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open a DCP checkpoint, and read its values, but not its tensors.

    The state consists of nested dicts, with strings as keys, and lists; items of a planner that saved no paths are in
    one flat dict. Ids in the ``state`` of an optimizer are integers again if its ``param_groups`` are loaded, too. A
    tensor that is compressed, or sharded other than by rows, is in memory twice while it is read.
    """
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
            sources[address_of(tensor)] = _TensorSource(files, stored, name, tensor.nbytes)
        items.append((name, tensor))
    file_names = {location.file for stored in metadata.tensors.values() for _, location in stored.chunks}
    file_names |= {location.file for location in metadata.values.values()}
    return Opened("dcp", _nest([(metadata.path_of(name), item) for name, item in items]), sources, len(file_names))


def _choose(metadata: DcpMetadata, keys: str | Sequence[str] | None, where: str) -> list[str]:
    """The names of the items that match path globs; None for all."""
    names = sorted(metadata.tensors.keys() | metadata.values.keys())
    if keys is None:
        return names
    stack, found = [choose(_nest([(metadata.path_of(name), name) for name in names]), keys, where)], []
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        else:
            stack += list(item.values() if isinstance(item, dict) else item)[::-1]
    return found


def _nest(items: Iterable[tuple[Keys, Any]]) -> Any:
    def conflict(path: Keys) -> CorruptFileError:
        return CorruptFileError("two paths of a DCP checkpoint conflict", found=readable(path))

    return nest(items, conflict)


class Files:
    """The files of a directory; each is opened at its first use."""

    def __init__(self, directory: Path, closing: ExitStack) -> None:
        self._directory, self._closing = directory, closing
        self._open: dict[str, ForeignFile] = {}

    def read(self, location: FileRange, max_bytes: int, name: str) -> bytes | memoryview:
        """The decoded bytes at a location."""
        path = self._directory / location.file
        where = f"{path}, {name}"
        if location.length > max_bytes:
            raise CorruptFileError(
                "an item of a DCP checkpoint is longer than expected",
                expected=f"at most {max_bytes} bytes",
                found=f"{location.length} bytes",
                where=where,
            )
        if location.file not in self._open:
            self._open[location.file] = self._closing.enter_context(ForeignFile(path))
        data: bytes | memoryview = self._open[location.file].read_at(location.offset, location.length)
        for transform in reversed(location.transforms):
            if transform not in _DECODERS:
                raise UnsupportedLeafError(
                    "a DCP checkpoint was written with an unknown extension",
                    expected=" or ".join(_DECODERS),
                    found=short(transform),
                    where=where,
                    todo="load it with dcp.load and a FileSystemReader that has the extension registered",
                )
            data = _DECODERS[transform](io.BytesIO(data).read, max_bytes, where)
        return data


def _decompress(read: Callable[[int], bytes], max_bytes: int, where: str) -> bytes:
    """The bytes of an item that DCP's own ``ZStandard`` has compressed."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(read(-1)) as stream:
            found = bytearray()
            while piece := stream.read(min(_PIECE_BYTES, max_bytes + 1 - len(found))):
                found += piece
    except zstandard.ZstdError as error:
        raise CorruptFileError("zstd data of a DCP checkpoint are damaged", found=str(error), where=where) from error
    if len(found) > max_bytes:
        raise CorruptFileError("an item of a DCP checkpoint is longer than expected", where=where)
    return bytes(found)


#: Name of an extension -> decoder.
_DECODERS = {"stream.zstd/1": _decompress, DESCRIPTOR: decode_stream}


def read_value(files: Files, location: FileRange, name: str) -> Any:
    """Read a value that is not a tensor."""
    return _unpickle(files.read(location, _MAX_VALUE_BYTES, name), f"{location.file}, {name}")


def new_tensor(stored: StoredTensor, name: str) -> torch.Tensor:
    """Allocate a tensor without touching its memory."""
    kind = LeafType.of_torch(stored.dtype, stored.shape, name)
    for box, location in stored.chunks:
        nbytes = box.elements * kind.itemsize
        if not location.transforms and location.length < nbytes:
            raise CorruptFileError(
                "a shard of a DCP checkpoint is shorter than what it holds",
                expected=f"at least {nbytes} bytes for {kind.dtype}{list(box.sizes)}",
                found=f"{location.length} bytes",
                where=f"{location.file}, {name}",
            )
    made = kind.new()
    assert isinstance(made, torch.Tensor)
    return made


def read_tensor(files: Files, stored: StoredTensor, name: str) -> torch.Tensor:
    """Read a tensor, with one shard at a time in memory beside it."""
    found = new_tensor(stored, name)
    for box, location in stored.chunks:
        nbytes, where = box.elements * stored.dtype.itemsize, f"{location.file}, {name}"
        shard = _unpickle(files.read(location, nbytes + _ARCHIVE_OVERHEAD, name), where)
        if not isinstance(shard, torch.Tensor) or (shard.dtype, tuple(shard.shape)) != (stored.dtype, box.sizes):
            is_tensor = isinstance(shard, torch.Tensor)
            raise CorruptFileError(
                "a shard of a DCP checkpoint does not match its metadata",
                expected=f"{stored.dtype}{list(box.sizes)}",
                found=f"{shard.dtype}{list(shard.shape)}" if is_tensor else type(shard).__name__,
                where=where,
            )
        if shard.layout is not torch.strided or shard.is_meta:
            raise UnsupportedLeafError(
                "a tensor of a DCP checkpoint has a layout that dcp.load does not support, either",
                expected="dense tensors",
                found="a meta tensor" if shard.is_meta else str(shard.layout),
                where=where,
                todo="leave it out (keys=)",
            )
        with torch.no_grad():
            found[box.slices()].copy_(shard)
    return found


def _unpickle(data: bytes | memoryview, where: str) -> Any:
    """The object in a ``torch.save`` archive."""
    file = io.BytesIO(data)
    check_archive(file, where)
    file.seek(0)
    return read_by_torch(file, where)


class _TensorSource:
    """The bytes of a tensor: shard by shard if it is sharded by rows, otherwise assembled in memory."""

    def __init__(self, files: Files, stored: StoredTensor, name: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._files, self._name = files, name
        #: Each is read at once; together they are the bytes of the tensor.
        self._parts = [stored]
        if all(box.sizes[1:] == stored.shape[1:] for box, _ in stored.chunks):
            chunks = sorted(stored.chunks, key=lambda chunk: chunk[0].offset)
            boxes = ((Box.whole(box.sizes), location) for box, location in chunks)
            self._parts = [StoredTensor(stored.dtype, box.sizes, ((box, location),)) for box, location in boxes]
        self._current: tuple[int, memoryview] | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``."""
        view, part_start = buffer.cast("B"), 0
        for index, part in enumerate(self._parts):
            part_end = part_start + math.prod(part.shape) * part.dtype.itemsize
            first, last = max(start, part_start), min(start + view.nbytes, part_end)
            if first < last:
                view[first - start : last - start] = self._part_bytes(index)[first - part_start : last - part_start]
                if last == part_end:
                    self._current = None
            part_start = part_end

    def _part_bytes(self, index: int) -> memoryview:
        if self._current is None or self._current[0] != index:
            self._current = None  # free it before the next one is allocated
            self._current = index, leaf_bytes(read_tensor(self._files, self._parts[index], self._name)).data
        return self._current[1]
