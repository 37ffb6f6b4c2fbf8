"""The boxes of a leaf on each rank: what torch divides is compared in tests/sharded; here, few ranks stand for all."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
from deeppart_simulator.workload.holding import Form, Kind, boxes_at
from deeppart_simulator.workload.shapes import ITEM_BYTES
from deeppart_simulator.workload.states import State
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.model import Box
from deeppart.partition.strategies import fill
from tests.sampling import examples
from tests.sharded.random_states import states


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Kind, list[Form]]:
    kind = Kind(0, None, draw(st.integers(1, 6)), draw(st.integers(1, 12)), draw(st.booleans()))
    shapes = st.lists(st.integers(0, 23), min_size=1, max_size=3).map(tuple)
    forms = [Form(shape, draw(st.integers(0, len(shape) - 1))) for shape in draw(st.lists(shapes, max_size=4))]
    return kind, list(dict.fromkeys(forms))


@settings(deadline=None)
@given(divisions())
def test_every_element_is_on_one_place_of_the_layout(division: tuple[Kind, list[Form]]) -> None:
    kind, forms = division
    for form in forms:
        boxes: list[Box] = []
        for shard, place in product(range(kind.shards), range(kind.tensor)):
            here = boxes_at(form, kind, shard, place)
            assert here == sorted(here)
            boxes += here
        whole = Form((Box.whole(form.shape).elements,), 0) if kind.in_a_row else form
        assert Box.fault_of_cover(boxes, whole.shape) == ""


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
        assert Box.fault_of_cover(boxes, tensor.shape) == "" or not tensor.nbytes
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


def _held(state: State, ranks: int) -> list[set[tuple[str, Box]]]:
    found: list[set[tuple[str, Box]]] = [set() for _ in range(ranks)]
    for groups in state.on(ranks):
        for number, members in enumerate(groups.ranks.tolist()):
            boxes = groups.boxes(number)
            here = {(tensor.path, box) for tensor, of in zip(groups.held.tensors, boxes, strict=True) for box in of}
            for rank in members:
                found[rank] |= here
    return found
