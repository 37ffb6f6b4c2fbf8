"""Open a DCP directory, so that its tensors are read piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from deeppart.interop.dcp.loading import Files, choose, nested_of, new_tensor, read_tensor, read_value
from deeppart.interop.dcp.metadata import Place, StoredTensor, read_metadata
from deeppart.interop.opened import Opened, Source, address_of
from deeppart.interop.torch_file.archive import Archive
from deeppart.interop.torch_file.loading import open_archive
from deeppart.model.boxes import Box
from deeppart.state.tree.leaves import Bytes, flat_bytes, is_flat


def open_dcp(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open it; values are read, tensors are not yet."""
    metadata = read_metadata(path)
    files = Files(path, closing)
    sources: dict[int, Source] = {}
    items: list[tuple[str, Any]] = []
    for name in choose(metadata, keys, str(path)):
        if name in metadata.values:
            items.append((name, read_value(files, metadata.values[name], name)))
            continue
        stored = metadata.tensors[name]
        tensor = new_tensor(stored, f"{path}, {name}")
        if tensor.nbytes:
            sources[address_of(tensor)] = _Pieces(files, stored, name, tensor.nbytes)
        items.append((name, tensor))
    places = {place.file for stored in metadata.tensors.values() for _, place in stored.chunks}
    return Opened(
        "dcp",
        nested_of(files, metadata, items),
        sources,
        len(places | {each.file for each in metadata.values.values()}),
        closing,
    )


class _Pieces:
    """The bytes of a tensor: one piece or rows straight from the files, otherwise assembled."""

    def __init__(self, files: Files, stored: StoredTensor, name: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._files, self._stored, self._name = files, stored, name
        self._rows: list[tuple[int, Source]] | None = None
        self._whole: Bytes | None = None

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
            self._whole = flat_bytes(read_tensor(self._files, self._stored, self._name))
        view[:] = self._whole[start:stop].data
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

    def _open_piece(self, box: Box, place: Place) -> Source | None:
        """Where the elements of a piece are; None if they do not lie there in C order, and nothing else with them."""
        found = open_archive(
            Archive(self._files.file_of(place), place.offset, place.length, f"{place.file}, {self._name}")
        )
        if found is None:
            return None
        piece, sources = found
        sound = isinstance(piece, torch.Tensor) and is_flat(piece) and tuple(piece.shape) == box.sizes
        if not sound or piece.dtype is not self._stored.dtype or piece.storage_offset():
            return None  # read in the other way, which says what is wrong
        source = sources.get(address_of(piece))
        return source if source is not None and source.nbytes == piece.nbytes else None
