"""Where a planner of DCP puts tensors, looked at before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.testing._internal.two_tensor import TwoTensor

from deeppart.errors import DeeppartError, FreedMemoryError, LeafMismatchError
from deeppart.interop.dcp.storage_reader import Destination, destinations, hand_over
from deeppart.model.boxes import Box


class Planner(DefaultLoadPlanner):
    """Has a tensor for each item, by place."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self.tensors = tensors

    def resolve_tensor(self, item: Any) -> Any:
        return self.tensors[int(item.storage_index.fqn)]


class Commits(Planner):
    """Copies on what it is given back."""

    def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
        self.copies = [*getattr(self, "copies", []), tensor.clone()]


def asked(planner: Planner, *, may_refuse: bool = False, sizes: tuple[int, ...] = (4,)) -> list[Destination]:
    items = [
        ReadItem(
            LoadItemType.TENSOR,
            MetadataIndex(str(place)),
            torch.Size([0] * len(sizes)),
            MetadataIndex(str(place), torch.Size([0] * len(sizes))),
            torch.Size([1] * len(sizes)),
            torch.Size(sizes),
        )
        for place in range(len(planner.tensors))
    ]
    return destinations(planner, items, lambda name: torch.float32, may_refuse=may_refuse)


def test_tensors_are_filled_where_they_are() -> None:
    flat = torch.zeros(12)
    planner = Planner([flat[:4], flat[4:8], flat[8:], torch.zeros(4, dtype=torch.float64)])
    found = asked(planner)
    assert not any(each.is_beside for each in found)
    assert [each.memory.data_ptr() for each in found] == [each.data_ptr() for each in planner.tensors]
    assert found[0].wanted.box == Box((1,), (4,))
    hand_over(planner, found)


@pytest.mark.parametrize("columns", [False, True])
def test_one_buffer_for_all_items(columns: bool) -> None:
    buffer = torch.zeros(4, 2)
    tensors = [buffer[:, 0], buffer[:, 1], buffer[:, 0]] if columns else [buffer.view(-1)[at : at + 4] for at in (0, 3)]
    planner = Commits([*tensors, torch.zeros(4)])
    found = asked(planner, may_refuse=True)
    assert [each.is_beside for each in found] == [True] * len(tensors) + [False]
    for number, each in enumerate(found):
        each.memory.fill_(number)
    hand_over(planner, found)
    assert [each.tolist() for each in planner.copies] == [[float(number)] * 4 for number in range(len(found))]
    # What is the state itself is left to whoever compares what its names get.
    assert [each.is_beside for each in asked(Planner(tensors), may_refuse=True)] == [False] * len(tensors)
    assert any(each.is_beside for each in asked(Planner(tensors)))


def test_a_range_within_another_after_one_that_ends_before() -> None:
    memory = torch.zeros(100)
    planner = Commits([memory[20:24], memory.as_strided((4,), (30,)), memory[5:9], memory[95:99]])
    assert [each.is_beside for each in asked(planner)] == [True, True, True, False]


def test_tensors_of_subclasses_are_filled_by_copying() -> None:
    planner = Planner([TwoTensor(torch.zeros(4), torch.ones(4))])
    found = asked(planner)
    found[0].memory.fill_(7)
    hand_over(planner, found)
    assert planner.tensors[0].a.tolist() == planner.tensors[0].b.tolist() == [7] * 4


def freed() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (lambda: torch.zeros(5), LeafMismatchError),
        (lambda: torch.zeros(1).expand(4), LeafMismatchError),
        (lambda: torch.zeros(4).to_sparse(), LeafMismatchError),
        (of_inference, LeafMismatchError),
        (freed, FreedMemoryError),
    ],
)
def test_what_cannot_be_filled(tensor: Any, kind: type[DeeppartError]) -> None:
    with pytest.raises(kind, match="1"):
        asked(Planner([torch.zeros(4), tensor()]))
