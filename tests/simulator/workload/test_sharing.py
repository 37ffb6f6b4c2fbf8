"""Shares of a state in a layout: every byte once, by a rank that holds it, as evenly as the sets of holders allow."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from deeppart_simulator.workload.shapes import ITEM_BYTES
from deeppart_simulator.workload.states import State, read_state
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.model.boxes import Box
from deeppart.partition.water_filling import fill
from deeppart.plan.shards import fault_of_cover
from tests.sampling import examples
from tests.sharded.random_states import states


@settings(deadline=None, max_examples=examples(60))
@given(states(), st.sampled_from([None, 0, 40, 1000]))
def test_every_byte_is_saved_once_by_a_rank_that_holds_it(made: tuple[State, int], kappa: int | None) -> None:
    state, ranks = made
    saved: dict[tuple[str, Box], list[tuple[int, int]]] = defaultdict(list)
    nbytes, count = [], []
    held = _held(state, ranks)
    for rank, spans in enumerate(state.spans(ranks, kappa=kappa)):
        nbytes.append(sum(span.length for span in spans))
        count.append(len(spans))
        for path, box, start, length in spans:
            assert (path, box) in held[rank]
            saved[path, box].append((start, length))
    shares = state.shares(ranks, kappa=kappa)
    assert (shares.nbytes.tolist(), shares.spans.tolist()) == (nbytes, count)
    assert shares.split == sum(len(pieces) > 1 for pieces in saved.values())
    for tensor in state.tensors:
        boxes = [box for path, box in saved if path == tensor.path]
        assert fault_of_cover(boxes, tensor.shape) == "" or not tensor.nbytes
        for box in boxes:
            at = 0
            for start, length in sorted(saved[tensor.path, box]):
                assert start == at and length > 0
                at += length
            assert at == box.elements * ITEM_BYTES[tensor.dtype]


@settings(deadline=None, max_examples=examples(60))
@given(states(), st.sampled_from([0, 40, 1000]))
def test_shares_are_as_even_as_sets_of_holders_allow(made: tuple[State, int], kappa: int) -> None:
    """Against water that is poured set by set: of each size of sets, a cut costs no more than the promise."""
    state, ranks = made
    level, allowed = np.zeros(ranks, dtype=np.int64), 0.0
    by_size: dict[int, float] = {}
    for groups in state.on(ranks):
        cost = int(groups.leaves.nbytes.sum()) + kappa * len(groups.leaves)
        for members in groups.ranks:
            level[members] += fill(level[members], cost)
        slack = kappa + max(cost / 100, int(groups.leaves.itemsize.max()))
        size = groups.ranks.shape[1]
        by_size[size] = max(by_size.get(size, 0.0), slack)
    allowed = sum(by_size.values())
    shares = state.shares(ranks, kappa=kappa)
    assert (shares.nbytes + kappa * shares.spans).max() <= level.max() + allowed + len(by_size)


def test_the_usual_cost_of_a_span_is_that_of_the_smallest_leaves() -> None:
    """All ranks have the same leaves here, so it is that of their mean; of few bytes per leaf it is less."""
    assert read_state("tensors-100x64KiB@fsdp").shares(4).nbytes.tolist() == [100 * (16 << 10)] * 4
    state = read_state("tensors-4x4KiB")
    assert state.spans(2) == state.spans(2, kappa=int(0.08 * 4096))


def _held(state: State, ranks: int) -> list[set[tuple[str, Box]]]:
    found: list[set[tuple[str, Box]]] = [set() for _ in range(ranks)]
    for groups in state.on(ranks):
        for number, members in enumerate(groups.ranks.tolist()):
            boxes = groups.boxes(number)
            here = {(tensor.path, box) for tensor, of in zip(groups.held.tensors, boxes, strict=True) for box in of}
            for rank in members:
                found[rank] |= here
    return found
