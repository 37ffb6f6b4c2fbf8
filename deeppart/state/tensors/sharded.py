"""The shards that this rank has of a sharded tensor, read from the tensor's own description.

Nothing of ``torch.distributed`` is imported. A tensor is sharded if it has one of these:

* ``device_mesh`` and ``placements``: DTensor. Its boxes are computed from its mesh and placements
  (:mod:`deeppart.plan.shards`), because its ``__create_chunk_list__`` returns one box even where strided shards
  make several.
* torch's protocol for checkpoints (``__create_write_items__``, ``__create_chunk_list__``, ``__get_tensor_shard__``;
  torch/distributed/_checkpointable.py): TorchRec's LocalShardsWrapper, Megatron-core's and Megatron-FSDP's tensors,
  also as the local tensor of a DTensor.
* ``local_shards()`` and ``metadata()``: ShardedTensor.
* ``global_shape``, ``global_offsets``, ``local_offsets``, ``local_sizes``: torch_checkpointing's CheckpointableTensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from deeppart.errors import DeeppartError, UnsupportedLeafError
from deeppart.model import Box
from deeppart.plan.shards import Placed, Split, place_boxes

_FLAT_GEOMETRY = ("global_shape", "global_offsets", "local_offsets", "local_sizes")


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards that one rank has of a sharded tensor.

    Attributes:
        dtype: the dtype.
        shape: the shape of the global tensor.
        boxes: the boxes of this rank's shards; none is empty.
        tensors: their plain local tensors, in the same order, of the same sizes.
        layout: see :func:`layout_of`.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tensors: tuple[torch.Tensor, ...]
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Determines the boxes of a DTensor: equal for two DTensors that are split in the same way.

    Attributes:
        spec: the object in which a DTensor keeps all of this; the same object for the lifetime of a DTensor.
        key: mesh, placements, shape, dtype, and the order in which mesh dimensions split.
    """

    spec: Any
    key: tuple[Any, ...]


def is_sharded(item: Any) -> bool:
    """True if :func:`read_shards` knows this kind of tensor."""
    return _is_dtensor(item) or _has_protocol(item) or _is_sharded_tensor(item) or _is_described(item)


def read_shards(item: Any, path: str) -> Shards:
    """The shards that this rank has of a sharded tensor."""
    try:
        if _is_dtensor(item):
            found = _of_dtensor(item, path)
        elif _has_protocol(item):
            found = _by_protocol(item, item, path)
        elif _is_sharded_tensor(item):
            found = _of_sharded_tensor(item)
        else:
            found = _of_described(item)
        _check(item, found, path)
    except DeeppartError:
        raise
    except Exception as error:  # raised by the caller's object
        raise UnsupportedLeafError(
            f"the shards of a {type(item).__name__} cannot be read",
            found=f"{type(error).__name__}: {error}",
            where=f"path {path}",
            todo="save its local plain tensor",
        ) from error
    return found


def shards_again(
    item: Any, shape: tuple[int, ...], boxes: Sequence[Box], layout: Layout | None
) -> tuple[torch.Tensor, ...] | None:
    """The local tensors of a sharded tensor that replaces another; None if it is split in another way."""
    if layout is not None:
        local = item._local_tensor
        if item._spec is layout.spec or _layout_key(item) == layout.key:
            if type(local) is torch.Tensor and len(boxes) == 1 and local.shape == boxes[0].sizes:
                return (local,)
        else:
            return None
    try:
        found = read_shards(item, "")
    except DeeppartError:
        return None
    return found.tensors if (found.shape, found.boxes) == (shape, tuple(boxes)) else None


def layout_of(item: Any) -> Layout | None:
    """The layout of a tensor; None if it is unknown, so that the boxes must be read again."""
    if not hasattr(item, "_spec") or type(item._local_tensor) is not torch.Tensor:
        return None
    return Layout(item._spec, _layout_key(item))


def _layout_key(item: Any) -> tuple[Any, ...]:
    return item.device_mesh, item.placements, item.shape, item.dtype, _shard_order(item)


def _shard_order(item: Any) -> Any:
    """The order in which mesh dimensions split the tensor's dimensions; None: in the order of the mesh."""
    return getattr(getattr(item, "_spec", None), "shard_order", None)


def local_tensors(item: Any) -> list[torch.Tensor]:
    """The plain tensors with the memory of this rank's shards."""
    if _is_dtensor(item):
        inner = item._local_tensor
        return list(read_shards(item, "").tensors) if is_sharded(inner) else [inner]
    if _has_protocol(item) or _is_sharded_tensor(item):
        return list(read_shards(item, "").tensors)
    return [item.detach()]


def cut_local(local: torch.Tensor, placed: Sequence[Placed]) -> tuple[torch.Tensor, ...]:
    """Views of the parts of a local tensor that hold its boxes."""
    local = local.detach()
    if len(placed) == 1 and placed[0].local.sizes == tuple(local.shape):
        return (local,)
    return tuple(local[each.local.slices()] for each in placed)


def placed_boxes(item: Any) -> list[Placed]:
    """The boxes of a DTensor, computed from its mesh and placements; [] on a rank outside the mesh."""
    mesh = item.device_mesh
    place = mesh.get_coordinate()
    if place is None:
        return []
    order = tuple((entry[0], tuple(entry[1])) for entry in _shard_order(item) or ())
    return _placed(tuple(item.shape), tuple(mesh.shape), tuple(place), item.placements, order)


@functools.lru_cache(maxsize=4096)
def _placed(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    place: tuple[int, ...],
    placements: tuple[Any, ...],
    order: tuple[tuple[int, tuple[int, ...]], ...],
) -> list[Placed]:
    """Cached: thousands of tensors share a handful of shapes and placements."""
    along: list[list[int]] = [[] for _ in shape]
    for at, each in enumerate(placements):
        dimension = _split_dimension(each, len(shape))
        if dimension is not None:
            along[dimension].append(at)
    for dimension, dimensions in order:
        # Strides imply the order already; torch 2.10 repeats it in the order.
        if all(_strides(placements[at]) == 1 for at in along[dimension]):
            along[dimension] = list(dimensions)
    splits = [[Split(mesh[at], place[at], _strides(placements[at])) for at in each] for each in along]
    return place_boxes(shape, splits)


def _split_dimension(placement: Any, dimensions: int) -> int | None:
    """The dimension of the tensor that a placement splits; None for Replicate."""
    if placement.is_replicate():
        return None
    dimension: int = placement.dim
    return dimension + dimensions if dimension < 0 else dimension


def _strides(placement: Any) -> int:
    return int(getattr(placement, "split_factor", 1))


def _is_dtensor(item: Any) -> bool:
    return hasattr(item, "placements") and hasattr(item, "device_mesh") and hasattr(item, "_local_tensor")


def _has_protocol(item: Any) -> bool:
    return hasattr(item, "__create_chunk_list__") and hasattr(item, "__get_tensor_shard__")


def _is_sharded_tensor(item: Any) -> bool:
    return callable(getattr(item, "local_shards", None)) and callable(getattr(item, "metadata", None))


def _is_described(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and all(hasattr(item, name) for name in _FLAT_GEOMETRY)


def _of_dtensor(item: Any, path: str) -> Shards:
    if any(each.is_partial() or not (each.is_replicate() or hasattr(each, "dim")) for each in item.placements):
        names = ", ".join(map(str, item.placements))
        raise UnsupportedLeafError(
            f"the state holds a DTensor with partial sums or with placements of an unknown kind ({names})",
            expected="placements of Shard and Replicate",
            where=f"path {path}",
            todo="redistribute it first: x.redistribute(placements=[Replicate(), ...])",
        )
    local = item._local_tensor
    if _has_protocol(local):
        return _by_protocol(local, item, path)
    if _is_described(local):
        return _of_described(local)
    if hasattr(local, "trigger_wait"):  # the result of a collective that may be in progress
        local = local.trigger_wait()
    placed = placed_boxes(item)
    ends = [[at + length for at, length in zip(*each.local, strict=True)] for each in placed]
    lengths = [max(along) for along in zip(*ends, strict=True)]
    if placed and lengths != list(local.shape):
        raise UnsupportedLeafError(
            "a DTensor's local tensor does not have the shape that its placements imply",
            expected=f"shape {lengths} for {list(item.shape)}, {item.placements} on a mesh of {item.device_mesh.shape}",
            found=f"shape {list(local.shape)}",
            where=f"path {path}",
            todo="make it with distribute_tensor, or with from_local and the right shape and stride",
        )
    tensors = cut_local(local, placed)
    return Shards(item.dtype, tuple(item.shape), tuple(each.box for each in placed), tensors, layout_of(item))


def _by_protocol(item: Any, outer: Any, path: str) -> Shards:
    """Read by torch's protocol; the global shape is that of the write items, if there are any."""
    chunks = list(item.__create_chunk_list__())
    writes = list(item.__create_write_items__(path, outer)) if chunks else []
    described = [each.tensor_data for each in writes if getattr(each, "tensor_data", None) is not None]
    shape = tuple(described[0].size) if described else tuple(outer.shape)
    boxes, tensors = [], []
    for place, chunk in enumerate(chunks):
        box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        if box.elements and len(box.offset) == len(box.sizes):
            # Like torch.distributed.checkpoint.MetadataIndex: identifies a shard by its offsets and its position.
            index = SimpleNamespace(fqn=path, offset=chunk.offsets, index=place)
            boxes.append(box)
            tensors.append(item.__get_tensor_shard__(index).detach())
    dtype = tensors[0].dtype if tensors else outer.dtype
    return Shards(dtype, shape, tuple(boxes), tuple(tensors))


def _of_sharded_tensor(item: Any) -> Shards:
    metadata, boxes, tensors = item.metadata(), [], []
    for shard in item.local_shards():
        box = Box(tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes))
        if box.elements:
            boxes.append(box)
            tensors.append(shard.tensor.detach())
    return Shards(metadata.tensor_properties.dtype, tuple(metadata.size), tuple(boxes), tuple(tensors))


def _of_described(item: Any) -> Shards:
    placed = [
        Placed(Box(tuple(begin), tuple(sizes)), Box(tuple(local), tuple(sizes)))
        for begin, local, sizes in zip(item.global_offsets, item.local_offsets, item.local_sizes, strict=True)
    ]
    placed = [each for each in placed if each.box.elements]
    plain = item.detach().as_subclass(torch.Tensor)
    return Shards(item.dtype, tuple(item.global_shape), tuple(each.box for each in placed), cut_local(plain, placed))


def _check(item: Any, found: Shards, path: str) -> None:
    """Check that the boxes and the local tensors of a tensor are consistent."""
    for box, tensor in zip(found.boxes, found.tensors, strict=True):
        if not box.fits(found.shape) or box.sizes != tuple(tensor.shape) or tensor.dtype != found.dtype:
            raise UnsupportedLeafError(
                f"the description of a {type(item).__name__} is inconsistent",
                expected=f"a shard {box} of {found.dtype}{list(found.shape)}",
                found=f"a local tensor of {tensor.dtype}{list(tensor.shape)}",
                where=f"path {path}",
                todo="save its local plain tensor",
            )
