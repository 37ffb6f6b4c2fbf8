"""Boxes of a tensor that this rank has, by themselves, as something that the library takes for a sharded tensor."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from deeppart.model.boxes import Box


class Pieces(torch.Tensor):
    """Says what it has by torch's protocol for checkpoints (:mod:`deeppart.state.tree.sharded`)."""

    _whole: tuple[int, ...]
    _boxes: tuple[Box, ...]
    _tensors: tuple[torch.Tensor, ...]

    def __new__(cls, shape: Sequence[int], boxes: Sequence[Box], tensors: Sequence[torch.Tensor]) -> Pieces:
        """A tensor without elements of its own."""
        made: Pieces = torch.Tensor._make_subclass(cls, torch.empty(0, dtype=tensors[0].dtype))
        made._whole, made._boxes, made._tensors = tuple(shape), tuple(boxes), tuple(tensors)
        return made

    def __create_chunk_list__(self) -> list[Any]:
        return [SimpleNamespace(offsets=box.offset, sizes=box.sizes) for box in self._boxes]

    def __create_write_items__(self, fqn: str, item: Any) -> list[Any]:
        return [SimpleNamespace(tensor_data=SimpleNamespace(size=self._whole)) for _ in self._boxes]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        place: int = index.index
        return self._tensors[place]
