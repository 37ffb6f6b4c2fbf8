"""Sharded tensors of every kind that is known, read as any rank; against what torch itself splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from deeppart.errors import UnsupportedLeafError
from deeppart.model import Box
from deeppart.state.tensors.sharded import layout_of, read_shards, shards_again
from tests.unit.sharded_groups import one_rank, pretended, split, split_as

WHOLE = torch.arange(7 * 5 * 3).view(7, 5, 3)

#: Lengths of a mesh, and how the tensor lies on it.
LAYOUTS: dict[str, tuple[Sequence[int], Sequence[Placement]]] = {
    "rows": ((3,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "the last dimension, counted from behind": ((2,), [Shard(-1)]),
    "more ranks than rows": ((8,), [Shard(0)]),
    "copies": ((3,), [Replicate()]),
    "copies of rows": ((2, 3), [Replicate(), Shard(0)]),
    "rows of copies": ((3, 2), [Shard(0), Replicate()]),
    "rows of columns": ((2, 3), [Shard(0), Shard(1)]),
    "rows of rows": ((2, 3), [Shard(0), Shard(0)]),
    "rows of rows of rows": ((2, 2, 2), [Shard(0), Shard(0), Shard(0)]),
    "FSDP over tensor parallelism": ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    "the same, more ranks": ((3, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    "strided columns": ((2, 3), [_StridedShard(1, split_factor=3), Shard(1)]),
    "strided, with rows between": ((2, 2, 2), [_StridedShard(0, split_factor=4), Shard(0), Shard(0)]),
}


def joined(size: int, make: Callable[[], Any]) -> tuple[torch.Tensor, list[Box]]:
    """What the shards of all ranks are together, and their boxes."""
    times, whole = torch.zeros(WHOLE.shape), torch.full(WHOLE.shape, -1)
    boxes: list[Box] = []
    for rank in range(size):
        with pretended(rank, size):
            found = read_shards(make(), "x")
        assert (found.dtype, found.shape) == (WHOLE.dtype, tuple(WHOLE.shape))
        for box, tensor in zip(found.boxes, found.tensors, strict=True):
            assert box.elements and type(tensor) is torch.Tensor and not tensor.requires_grad
            times[box.slices()] += 1
            whole[box.slices()] = tensor
        boxes += found.boxes
    assert (times > 0).all()
    return whole, boxes


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_ranks_together_have_the_tensor(name: str) -> None:
    lengths, placements = LAYOUTS[name]
    size = int(torch.tensor(lengths).prod())
    whole, boxes = joined(size, lambda: split_as(WHOLE, lengths, placements))
    assert torch.equal(whole, WHOLE)
    assert Box.fault_of_cover(list(set(boxes)), tuple(WHOLE.shape)) == ""
    if not any(isinstance(each, _StridedShard) for each in placements):  # which distribute_tensor() does not make
        assert torch.equal(joined(size, lambda: split(WHOLE, lengths, placements))[0], WHOLE)


def test_the_tensors_are_the_live_memory() -> None:
    with pretended(1, 4):
        x = split_as(WHOLE, (2, 2), [_StridedShard(0, split_factor=2), Shard(0)])
        found = read_shards(x, "x")
        for tensor in found.tensors:
            tensor.fill_(-5)
        assert (x._local_tensor == -5).all() and len(x._local_tensor)


def test_shards_that_are_no_neighbours_are_several_boxes() -> None:
    with pretended(0, 4):
        x = split_as(torch.arange(9), (4,), [_StridedShard(0, split_factor=2)])
        found = read_shards(x, "x")
    assert found.boxes == (Box((0,), (2,)), Box((5,), (1,)))
    assert [tensor.tolist() for tensor in found.tensors] == [[0, 1], [5]]


def test_a_rank_outside_of_the_mesh_has_nothing() -> None:
    with pretended(3, 4):
        x = split_as(WHOLE, (2,), [Shard(0)])
        found = read_shards(x, "x")
    assert (found.boxes, found.shape) == ((), (7, 5, 3))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_a_tensor_without_elements_has_no_shards(shape: tuple[int, ...]) -> None:
    with pretended(0, 2):
        found = read_shards(split(torch.zeros(shape), (2,), [Shard(0)]), "x")
    assert (found.boxes, found.tensors, found.shape) == ((), (), shape)


@pytest.mark.parametrize("rows", [3, 5, 0])
def test_a_local_tensor_of_another_length_than_its_placements_give_it(rows: int) -> None:
    """from_local() without a shape, where ranks have different lengths."""
    with pretended(0, 2):
        mesh = DeviceMesh("cpu", torch.arange(2))
        shape, stride = torch.Size((7, 2)), (2, 1)
        local = torch.zeros(rows, 2)
        x = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        with pytest.raises(UnsupportedLeafError, match="does not have the shape that its placements imply"):
            read_shards(x, "x")


# --- other kinds of sharded tensors -----------------------------------------------------------------------------------


def wrapper() -> LocalShardsWrapper:
    return LocalShardsWrapper([torch.ones(2, 3), torch.full((4, 2), 2.0)], [(0, 0), (2, 1)])


def test_several_shards_in_the_local_tensor_of_a_dtensor() -> None:
    """As TorchRec keeps tables."""
    with pretended(0, 2):
        mesh = DeviceMesh("cpu", torch.arange(2))
        shape, stride = torch.Size((12, 3)), (3, 1)
        x = DTensor.from_local(wrapper(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        found = read_shards(x, "x")
        assert layout_of(x) is None, "its boxes do not follow from mesh and placements"
        nothing = LocalShardsWrapper([], [])
        x = DTensor.from_local(nothing, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        assert (read_shards(x, "x").boxes, read_shards(x, "x").shape) == ((), (12, 3))
    assert (found.shape, found.dtype) == ((12, 3), torch.float32)
    assert found.boxes == (Box((0, 0), (2, 3)), Box((2, 1), (4, 2)))
    assert [tensor.unique().tolist() for tensor in found.tensors] == [[1.0], [2.0]]


def test_a_wrapper_alone_does_not_know_the_whole_shape() -> None:
    x = LocalShardsWrapper([torch.ones(2, 3)], [(0, 0)])
    assert read_shards(x, "x").boxes == (Box((0, 0), (2, 3)),)
    with pytest.raises(UnsupportedLeafError, match="description of a LocalShardsWrapper is inconsistent"):
        read_shards(wrapper(), "x")


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    with one_rank() as mesh:
        yield mesh


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")
def test_the_older_sharded_tensor(alone: DeviceMesh) -> None:
    x = sharded_tensor.rand(ChunkShardingSpec(0, ["rank:0/cpu"]), 4, 2)
    found = read_shards(x, "x")
    assert found.boxes == (Box.whole((4, 2)),) and found.shape == (4, 2)
    assert torch.equal(found.tensors[0], x.local_shards()[0].tensor)


class Described(torch.Tensor):
    """Tells where pieces of it lie in a whole."""

    global_shape: Any = (6, 4)
    global_offsets: Any = ((0, 1), (4, 1), (0, 0))
    local_offsets: Any = ((0, 0), (2, 0), (0, 0))
    local_sizes: Any = ((2, 2), (1, 2), (0, 4))


def described(**other: Any) -> Any:
    x = torch.arange(6.0).view(3, 2).as_subclass(Described)
    for name, value in other.items():
        setattr(x, name, value)
    return x


def test_a_tensor_that_says_where_its_pieces_lie() -> None:
    x = described()
    found = read_shards(x, "x")
    assert (found.shape, found.boxes) == ((6, 4), (Box((0, 1), (2, 2)), Box((4, 1), (1, 2))))
    assert [tensor.tolist() for tensor in found.tensors] == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]]
    assert all(type(tensor) is torch.Tensor for tensor in found.tensors)
    found.tensors[1].zero_()
    assert x[2].tolist() == [0.0, 0.0]


WRONG: dict[str, dict[str, Any]] = {
    "beyond the whole": {"global_shape": (4, 4)},
    "of another number of dimensions": {"global_shape": (6, 4, 1)},
    "beyond the local tensor": {"local_offsets": [(1, 0), (3, 0), (0, 0)]},
    "lists of other lengths": {"local_sizes": [(2, 2)]},
    "before the whole": {"global_offsets": [(-1, 0), (4, 1), (0, 0)]},
    "no numbers": {"global_offsets": [("a", 0), (4, 1), (0, 0)]},
    "None": {"global_offsets": None},
    "offsets of too few dimensions": {"global_offsets": [(0,), (4,), (0,)]},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_it_says_of_itself_has_to_be_possible(name: str) -> None:
    with pytest.raises(UnsupportedLeafError, match="Described") as caught:
        read_shards(described(**WRONG[name]), "a/b")
    assert "path a/b" in str(caught.value)


# --- the same tensor again --------------------------------------------------------------------------------------------


def test_without_a_layout_the_boxes_are_compared() -> None:
    first = read_shards(described(), "x")
    assert first.layout is None
    assert shards_again(described(), first.shape, first.boxes, None) is not None
    moved = described(global_offsets=[(1, 1), (4, 1), (0, 0)])
    fewer = described(local_sizes=[(2, 2), (0, 2), (0, 4)])
    broken = described(global_offsets=None)
    assert [shards_again(each, first.shape, first.boxes, None) for each in (moved, fewer, broken)] == [None] * 3


def test_a_local_tensor_that_was_replaced_by_a_longer_one_is_looked_at_again() -> None:
    with pretended(1, 4):
        x = split(WHOLE, (4,), [Shard(0)])
        first = read_shards(x, "x")
        x._local_tensor = torch.zeros(3, 5, 3, dtype=WHOLE.dtype)
        assert shards_again(x, first.shape, first.boxes, first.layout) is None
