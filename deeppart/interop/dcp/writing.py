"""Export of DCP checkpoints, as ``dcp.save`` writes them in one process.

Data files are concatenated ``torch.save`` archives, one for each item. ``.metadata`` is a pickle of torch's own classes
(``torch/distributed/checkpoint/filesystem.py``, ``metadata.py``).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from deeppart.interop.outline import Outline, arrays_remark, first_names, outline
from deeppart.interop.torch_file import Leaves, write_archive


class DcpWriter:
    """Writes DCP directories."""

    form = "dcp"
    is_directory = True

    def __init__(self, max_shard_bytes: int | None = None) -> None:
        self._max_file_bytes = max_shard_bytes

    def write(self, content: Content) -> list[str]:
        """Write the content."""
        content.refuse_repeats()
        made = outline(content)
        items, paths = _flatten(made.state)
        leaves = _SeparateStorages(content, made, items)
        locations: dict[MetadataIndex, _StorageInfo] = {}
        pending, files = list(items.items()), 0
        while pending or not files:
            name = f"__0_{files}.distcp"
            with content.file(name) as stream:
                pending = self._fill(stream, name, pending, leaves, locations)
            files += 1
        described = {
            name: item_metadata(item.dtype, item.shape) if isinstance(item, torch.Tensor) else item_metadata()
            for name, item in items.items()
        }
        metadata = Metadata(described, paths, locations, StorageMeta())
        with content.file(METADATA_NAME) as stream:  # last: it makes the directory a checkpoint
            stream.write(pickle.dumps(metadata))
        remarks = [*arrays_remark(content), *made.remarks]
        known = set(paths.values())
        if lost := [readable(path) for path in _empty_dicts(made.state, ()) if path not in known]:
            remarks.append(f"empty dicts are not written, nor does dcp.save write them: {first_names(lost)}")
        if any(content.same_as(leaf) is not None for leaf in content.leaves):
            remarks.append("tied leaves are written under each of their names, as by dcp.save")
        return remarks

    def _fill(
        self,
        stream: Any,
        name: str,
        items: list[tuple[str, Any]],
        leaves: _SeparateStorages,
        locations: dict[MetadataIndex, _StorageInfo],
    ) -> list[tuple[str, Any]]:
        """Write items into a file until it is full; returns the remaining ones."""
        for number, (key, item) in enumerate(items):
            offset, nbytes = stream.nbytes, sum(tensor.nbytes for tensor in tensors_in(item))
            if number and self._max_file_bytes is not None and offset + nbytes > self._max_file_bytes:
                return items[number:]
            write_archive(stream, item, leaves)
            is_tensor = isinstance(item, torch.Tensor)
            index = MetadataIndex(key, torch.Size([0] * item.dim()), 0) if is_tensor else MetadataIndex(key)
            locations[index] = _StorageInfo(name, offset, stream.nbytes - offset)
        return []


def _flatten(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Items and paths, by their DCP names."""
    if not isinstance(state, dict):
        raise StateError(
            "DCP can only save a dict",
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
        if isinstance(item, torch.Tensor) and (item.layout is not torch.strided or item.is_quantized or item.is_nested):
            raise StateError(
                "DCP cannot save composite tensors",
                found=str(item.layout if item.layout is not torch.strided else item.dtype),
                where=f"path {name}",
                todo="leave it out (--keys), or export to another format: --to torch or hdf5",
            )
    return items, paths


def _empty_dicts(item: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The paths of empty dicts, with DCP's keys."""
    if isinstance(item, dict):
        if path and not item:
            yield path
        for key, each in item.items():
            yield from _empty_dicts(each, (*path, str(key)))
    elif isinstance(item, list):
        for index, each in enumerate(item):
            yield from _empty_dicts(each, (*path, index))


def item_metadata(
    dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
) -> TensorStorageMetadata | BytesStorageMetadata:
    """DCP's metadata of a tensor that is one chunk, or of a value."""
    if dtype is None or shape is None:
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), [chunk])


class _SeparateStorages(Leaves):
    """Leaves with a storage each, read in the order of the items."""

    def __init__(self, content: Content, made: Outline, items: Mapping[str, Any]) -> None:
        super().__init__(content, made)
        order: list[int] = []
        for item in items.values():
            order += dict.fromkeys(made.leaves[id(each)] for each in tensors_in(item) if id(each) in made.leaves)
        self._reading = content.stream(order)
        self._done = 0
        self._total = sum(content.types[leaf].nbytes for leaf in order)

    def view(self, tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]] | None:
        """For a placeholder: the whole of its own leaf."""
        return None if super().view(tensor) is None else self.content.view_of(self._made.leaves[id(tensor)], ())

    def stream(self, order: list[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of the next leaves, which are those in ``order``."""
        for _ in order:
            leaf, pieces = next(self._reading)
            yield leaf, pieces
            self._done += self.content.types[leaf].nbytes
            self.content.progress(self._done, self._total)
