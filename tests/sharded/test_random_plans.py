"""The library's plan of random sharded states, on ranks that are threads here, is the simulator's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import torch
from deeppart_simulator.workload.holding import aspect_of, boxes_at, form_of, kind_of
from deeppart_simulator.workload.states import State
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.comm import Operation, SingleComm
from deeppart.comm.base import Int64s, immediately
from deeppart.model import Box
from deeppart.save.share_planning import Holders, plan_share
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.compare import derive
from deeppart.state.paths.globs import Replication
from deeppart.state.tree.flattening import flatten
from tests.sampling import examples
from tests.sharded.random_states import states

_LIMIT_S = 30.0


class Threads(SingleComm):
    """One of some ranks that are threads; they know maxima alone."""

    def __init__(self, rank: int, told: list[Any], barrier: Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(told)
        self._told, self._barrier = told, barrier

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        self._told[self.rank] = values
        self._barrier.wait(_LIMIT_S)
        found = np.max(self._told, axis=0)
        self._barrier.wait(_LIMIT_S)
        return immediately(found)


class Shard(torch.Tensor):
    """Says itself what it is a part of."""


def shard_of(shape: tuple[int, ...], dtype: torch.dtype, boxes: Sequence[Box]) -> Shard:
    """What a rank has of a tensor: its boxes one after another, along the first dimension."""
    ends = np.cumsum([0, *(box.sizes[0] for box in boxes)]).tolist()
    local = torch.zeros((ends[-1], *(boxes[0].sizes[1:] if boxes else shape[1:])), dtype=dtype).as_subclass(Shard)
    local.global_shape = shape  # type: ignore[attr-defined]
    local.global_offsets = [box.offset for box in boxes]  # type: ignore[attr-defined]
    local.local_offsets = [(at, *(0 for _ in shape[1:])) for at in ends[:-1]]  # type: ignore[attr-defined]
    local.local_sizes = [box.sizes for box in boxes]  # type: ignore[attr-defined]
    return local


@settings(deadline=None, max_examples=examples(60))
@given(states(), st.sampled_from([None, 0, 40]))
def test_both_plan_the_same(made: tuple[State, int], kappa: int | None) -> None:
    state, ranks = made
    if not any(tensor.shape and not tensor.plain for tensor in state.tensors):
        return  # nothing is sharded
    on_ranks = [_boxes(state, ranks, rank) for rank in range(ranks)]
    holders: dict[tuple[str, Box], tuple[int, ...]] = {}
    for rank, on_rank in enumerate(on_ranks):
        for path, boxes in on_rank.items():
            for box in boxes:
                holders[path, box] = (*holders.get((path, box), ()), rank)
    told, barrier = [None] * ranks, Barrier(ranks)

    def planned(rank: int) -> list[tuple[str, Box, int, int]]:
        try:
            return _planned(Threads(rank, told, barrier), state, on_ranks[rank], holders, kappa)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(planned, range(ranks)))
    assert found == [sorted(map(tuple, of_rank)) for of_rank in state.spans(ranks, kappa=kappa)]


def _boxes(state: State, ranks: int, rank: int) -> dict[str, list[Box]]:
    """What a rank has of each tensor that is sharded."""
    grid = state.layout.at(ranks)
    found = {}
    for tensor in state.tensors:
        if tensor.shape and not tensor.plain:
            kind = kind_of(aspect_of(tensor), 0, grid, 0)
            places = grid.ranks_of(0, None, kind.shards, divided=kind.tensor > 1)
            shard, place, _ = np.argwhere(places == rank)[0].tolist()
            found[tensor.path] = boxes_at(form_of(tensor), kind, shard, place)
    return found


def _planned(
    comm: Threads,
    state: State,
    on_rank: dict[str, list[Box]],
    holders: dict[tuple[str, Box], tuple[int, ...]],
    kappa: int | None,
) -> list[tuple[str, Box, int, int]]:
    live: dict[str, torch.Tensor] = {}
    for tensor in state.tensors:
        dtype = getattr(torch, tensor.dtype)
        if tensor.path in on_rank:
            live[tensor.path] = shard_of(tensor.shape, dtype, on_rank[tensor.path])
        else:
            live[tensor.path] = torch.zeros(tensor.shape, dtype=dtype)
    flat = flatten(live)
    layout = derive(flat, Replication("auto"))
    names = {n: (leaf.path[0], box) for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
    held = Holders(ranks={number: holders[name] for number, name in names.items()})
    share = plan_share(comm, layout, flat, kappa, ("a plan", _LIMIT_S), all_tell=True, holders=held)
    assert isinstance(share, ShareLayout), share
    found = []
    for leaf, start, length in share.spans[["leaf", "start", "length"]].tolist():
        path, box = names.get(leaf) or (flat.arrays[leaf].path[0], Box.whole(layout.types[leaf].shape))
        found.append((path, box, start, length))
    return sorted(found)
