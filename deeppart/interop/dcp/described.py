"""DCP's record of a checkpoint, for what is in one of this library: each tensor is one chunk.

Where its bytes lie is the library's business: any box of it can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from deeppart.interop.dcp.names import Item


def metadata_of(items: Mapping[str, Item]) -> Metadata:
    """The record of items by name."""
    found = Metadata({})
    fill(found, items.values())
    return found


def fill(metadata: Metadata, items: Iterable[Item]) -> None:
    """Make a record that of these items, in place."""
    described: dict[str, Any] = {}
    paths = {}
    for item in items:
        name = item.name
        described[name] = _described(item)
        paths[name] = item.path
    metadata.state_dict_metadata = described
    metadata.planner_data = paths


def _described(item: Item) -> TensorStorageMetadata | BytesStorageMetadata:
    if item.dtype is None or item.shape is None:
        return BytesStorageMetadata()
    size = torch.Size(item.shape)
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(dtype=item.dtype), size, [whole])
