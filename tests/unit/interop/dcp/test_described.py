"""DCP's record of what is in a checkpoint."""

from __future__ import annotations

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

from deeppart.interop.dcp.described import fill, metadata_of
from deeppart.interop.dcp.names import Item, by_name


def test_each_tensor_is_one_chunk() -> None:
    items = [Item(("a", 0, "w"), torch.bfloat16, (3, 4)), Item(("n",)), Item(("s",), torch.int64, ())]
    found = metadata_of(by_name(items, "here"))
    assert found.planner_data == {"a.0.w": ("a", 0, "w"), "n": ("n",), "s": ("s",)}
    w, s = found.state_dict_metadata["a.0.w"], found.state_dict_metadata["s"]
    assert isinstance(w, TensorStorageMetadata) and isinstance(s, TensorStorageMetadata)
    assert (w.properties.dtype, w.size) == (torch.bfloat16, (3, 4))
    assert [(chunk.offsets, chunk.sizes) for chunk in w.chunks] == [((0, 0), (3, 4))]
    assert [(chunk.offsets, chunk.sizes) for chunk in s.chunks] == [((), ())]
    assert isinstance(found.state_dict_metadata["n"], BytesStorageMetadata)


def test_filled_in_place() -> None:
    record = Metadata({"old": BytesStorageMetadata()}, {"old": ("old",)})
    fill(record, [Item(("new",))])
    assert list(record.state_dict_metadata) == list(record.planner_data) == ["new"]
