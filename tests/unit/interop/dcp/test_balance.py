"""Plans of many ranks divided: every element once, by a rank that has it, and evenly."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from deeppart.interop.dcp.planner import Division, divide
from deeppart.model import Box


def tensor(name: str, shape: tuple[int, ...], box: Box | None = None, dtype: torch.dtype = torch.float32) -> WriteItem:
    """A plain tensor, or a shard."""
    held = Box.whole(shape) if box is None else box
    kind = WriteItemType.TENSOR if box is None else WriteItemType.SHARD
    chunk = ChunkStorageMetadata(torch.Size(held.offset), torch.Size(held.sizes))
    data = TensorWriteData(chunk, TensorProperties(dtype=dtype), torch.Size(shape))
    return WriteItem(MetadataIndex(name, torch.Size(held.offset)), kind, tensor_data=data)


def value(name: str) -> WriteItem:
    return WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)


def samples(plan: Sequence[WriteItem], whole: Sequence[str] = ()) -> dict[MetadataIndex, int]:
    return {item.index: 1 for item in plan if item.tensor_data is not None and item.index.fqn not in whole}


def box_of(item: WriteItem) -> Box:
    assert item.tensor_data is not None
    return Box(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes))


def nbytes(items: Sequence[WriteItem]) -> int:
    found = 0
    for item in items:
        if item.tensor_data is not None:
            found += box_of(item).elements * item.tensor_data.properties.dtype.itemsize
    return found


def check(plans: Sequence[Sequence[WriteItem]], division: Division) -> None:
    """Nothing is lost, nothing twice, and everything is written by a rank that has it."""
    shapes: dict[str, tuple[int, ...]] = {}
    boxes: dict[str, list[Box]] = defaultdict(list)
    written: list[MetadataIndex] = []
    for rank, items in enumerate(division.items):
        for item in items:
            written.append(item.index)
            mine = [each for each in plans[rank] if each.index.fqn == item.index.fqn]
            assert mine, (rank, item)
            if item.tensor_data is not None:
                assert any(box_of(item).within(box_of(each)).fits(box_of(each).sizes) for each in mine)
                shapes[item.index.fqn] = tuple(item.tensor_data.size)
                boxes[item.index.fqn].append(box_of(item))
                assert item.index.offset == item.tensor_data.chunk.offsets
    assert len(written) == len(set(written))
    for name, shape in shapes.items():
        assert not Box.fault_of_cover([box for box in boxes[name] if box.elements], shape), name
    assert {index.fqn for index in written} == {item.index.fqn for plan in plans for item in plan}


@pytest.mark.parametrize("seed", range(25))
def test_random_plans(seed: int) -> None:
    draw = random.Random(seed)
    ranks = draw.choice([1, 2, 3, 5, 8, 16])
    plans: list[list[WriteItem]] = [[] for _ in range(ranks)]
    for number in range(draw.choice([1, 5, 40])):
        name, kind = f"t{number}", draw.choice(["plain", "plain", "shards", "value", "some"])
        shape = tuple(draw.choice([1, 2, 3, 17, 64]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4])))
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.bool, torch.complex128])
        holders = range(ranks) if kind != "some" else sorted(draw.sample(range(ranks), draw.randint(1, ranks)))
        parts = draw.randint(1, ranks)
        for rank in holders:
            if kind == "value":
                plans[rank].append(value(name))
            elif kind == "shards" and shape:
                size = -(-shape[0] // parts)
                begin = min(shape[0], size * (rank % parts))
                length = min(size, shape[0] - begin)
                box = Box((begin, *(0 for _ in shape[1:])), (length, *shape[1:]))
                plans[rank].append(tensor(name, shape, box, dtype))
            else:
                plans[rank].append(tensor(name, shape, None, dtype))
    told = [samples(plan, [f"t{n}" for n in range(0, 40, 3)]) for plan in plans]
    division = divide(plans, told)
    check(plans, division)
    assert division == divide(plans, told)


def test_a_rank_with_shards_of_its_own_gets_less_of_the_rest() -> None:
    plans = [[tensor("w", (1000, 100))] for _ in range(3)]
    plans[2].append(tensor("own", (100, 100)))
    division = divide(plans, [samples(plan) for plan in plans])
    check(plans, division)
    written = [nbytes(items) for items in division.items]
    assert max(written) - min(written) < 5000
