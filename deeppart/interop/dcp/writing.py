"""Write a checkpoint as ``dcp.save`` does in one process.

Data files hold what ``torch.save`` makes of each item, one after the other; ``.metadata`` is pickled by torch's own
classes (``torch/distributed/checkpoint/filesystem.py``, ``metadata.py``).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from deeppart.errors import StateError, short
from deeppart.extension import Content, readable
from deeppart.interop.formats import METADATA_NAME
from deeppart.interop.opened import tensors_in
from deeppart.interop.outline import Outline, arrays_remark, outline
from deeppart.interop.torch_file import Leaves, write_archive


class DcpWriter:
    """Writes DCP directories."""

    form = "dcp"
    is_directory = True

    def __init__(self, max_shard_bytes: int | None = None) -> None:
        self._most = max_shard_bytes

    def write(self, content: Content) -> Any:
        """Write all of it."""
        content.refuse_repeats()
        made = outline(content)
        items, paths = _flat(made.state)
        leaves = _Separate(content, made, items)
        places: dict[MetadataIndex, _StorageInfo] = {}
        left, files = list(items.items()), 0
        while left or not files:
            name = f"__0_{files}.distcp"
            with content.file(name) as stream:
                left = self._fill(stream, name, left, leaves, places)
            files += 1
        described = {name: _describe(item) for name, item in items.items()}
        metadata = Metadata(described, paths, places, StorageMeta())
        with content.file(METADATA_NAME) as stream:  # last: it makes the directory a checkpoint
            stream.write(pickle.dumps(metadata))
        remarks = [*arrays_remark(content), *made.remarks]
        known = set(paths.values())
        if lost := [readable(path) for path in _empty(made.state, ()) if path not in known]:
            more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
            remarks.append(f"dicts with nothing in them are not there, nor by dcp.save: {', '.join(lost[:4])}{more}")
        if any(content.same_as(leaf) is not None for leaf in content.leaves):
            remarks.append("tied leaves stand there under each of their names, as dcp.save writes them")
        return content.totals(remarks, files + 1)

    def _fill(
        self,
        stream: Any,
        name: str,
        items: list[tuple[str, Any]],
        leaves: _Separate,
        places: dict[MetadataIndex, _StorageInfo],
    ) -> list[tuple[str, Any]]:
        """Write items into a file until it is full; returns those that are left."""
        for number, (key, item) in enumerate(items):
            if number and self._most is not None and stream.nbytes + _nbytes(item) > self._most:
                return items[number:]
            offset = stream.nbytes
            write_archive(stream, item, leaves)
            place = torch.Size([0] * item.dim()) if isinstance(item, torch.Tensor) else None
            index = MetadataIndex(key) if place is None else MetadataIndex(key, place, 0)
            places[index] = _StorageInfo(name, offset, stream.nbytes - offset)
        return []


def _flat(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Items by their DCP names, with their paths."""
    if not isinstance(state, dict):
        raise StateError(
            "DCP saves dicts, and the state is none",
            found=type(state).__name__,
            todo="export a dict in it (--root), or to another format: --to torch or hdf5",
        )
    try:
        items, paths = flatten_state_dict(state)
    except ValueError as error:
        raise StateError(
            "two leaves would have the same name in a DCP checkpoint",
            found=short(str(error)),
            todo="leave one of them out (--keys), or export to another format: --to torch or hdf5",
        ) from error
    for name, item in items.items():
        if isinstance(item, torch.Tensor) and not _is_dense(item):
            raise StateError(
                "DCP has no tensors that are made of others",
                found=str(item.layout if item.layout is not torch.strided else item.dtype),
                where=f"path {name}",
                todo="leave it out (--keys), or export to another format: --to torch or hdf5",
            )
    return items, paths


def _empty(item: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The paths of empty dicts, in dicts and lists, with their DCP keys."""
    if isinstance(item, dict):
        if path and not item:
            yield path
        for key, each in item.items():
            yield from _empty(each, (*path, str(key)))
    elif isinstance(item, list):
        for place, each in enumerate(item):
            yield from _empty(each, (*path, place))


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _describe(item: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(item, torch.Tensor):
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size([0] * item.dim()), item.size())
    return TensorStorageMetadata(TensorProperties(dtype=item.dtype), item.size(), [chunk])


def _nbytes(item: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(item))


class _Separate(Leaves):
    """Leaves with separate storages, read in the order of the items."""

    def __init__(self, content: Content, made: Outline, items: Mapping[str, Any]) -> None:
        super().__init__(content, made)
        order: list[int] = []
        for item in items.values():
            order += dict.fromkeys(made.leaves[id(each)] for each in tensors_in(item) if id(each) in made.leaves)
        self._reading = content.stream(order)
        self._done = 0
        self._total = sum(content.types[leaf].nbytes for leaf in order)

    def view(self, tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]] | None:
        """Of a stand-in: all of its own leaf."""
        return None if super().view(tensor) is None else self.content.view_of(self._made.leaves[id(tensor)], ())

    def stream(self, order: list[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of the next leaves, which these are."""
        for _ in order:
            leaf, pieces = next(self._reading)
            yield leaf, pieces
            self._done += self.content.types[leaf].nbytes
            self.content.progress(self._done, self._total)
