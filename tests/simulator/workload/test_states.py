"""States by shape: counts that are published, and shares against the partitioner on the whole state."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from deeppart_simulator.workload.states import State, read_state

from deeppart.errors import ConfigError
from deeppart.model import LeafSpec
from deeppart.partition import partition


@pytest.mark.parametrize(
    "text",
    [
        "bert-large+sgd",
        "bert-large:int3",
        "bert-large+",
        "bert-large@",
        "bert-large@tp",
        "bert-large@tp=0",
        "bert-large@fsdp,hsdp=2",
        "bert-large@pp=25",
        "bert-large@ep=2",
        "mixtral-8x7b@ep=3",
        "bert-large@tp=2,tp=2",
    ],
)
def test_impossible_states_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_state(text)


# --- shares -----------------------------------------------------------------------------------------------------------


def _direct(state: State, ranks: int, strategy: str, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """The same state handed to the partitioner as lists of leaves, for each set of ranks that hold them."""
    held: dict[tuple[int, ...], list[LeafSpec]] = {}
    for tensor_groups in state.on(ranks):
        for row in tensor_groups.ranks.tolist():
            for number in range(len(tensor_groups.leaves)):
                nbytes, item = int(tensor_groups.leaves.nbytes[number]), int(tensor_groups.leaves.itemsize[number])
                path = f"{len(row):04d}/{min(row):04d}/{number:06d}"
                held.setdefault(tuple(row), []).append(LeafSpec(path, nbytes, item))
    nbytes_of, spans_of = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for members in sorted(held, key=lambda each: (len(each), each)):
        of = list(members)
        plan = partition(held[members], len(of), kappa, strategy, (nbytes_of + int(kappa) * spans_of)[of])
        nbytes_of[of] += plan.bytes_per_rank()
        spans_of[of] += plan.spans_per_rank()
    return nbytes_of, spans_of


@pytest.mark.parametrize("strategy", ["deeppart", "whole", "flat", "rank0"])
@pytest.mark.parametrize(
    ("text", "ranks"),
    [("bert-base+adam", 6), ("bert-base+adam@tp=2", 8), ("bert-base@tp=2,pp=2", 8), ("bert-base+adam@hsdp=2", 8)],
)
def test_shares_are_those_of_the_partitioner_on_the_whole_state(text: str, ranks: int, strategy: str) -> None:
    state = read_state(text)
    shares = state.shares(ranks, strategy, 65536)
    nbytes, spans = _direct(state, ranks, strategy, 65536)
    assert int(shares.nbytes.sum()) == int(nbytes.sum())
    # Cuts may fall at other leaves, since paths differ; what ranks carry may not differ by more than the promise.
    cost, direct = shares.nbytes + 65536 * shares.spans, nbytes + 65536 * spans
    assert float(cost.max()) == pytest.approx(float(direct.max()), rel=0.011, abs=65536)


@pytest.mark.now_and_then(2)
def test_a_trillion_parameters_fit_on_a_laptop() -> None:
    tracemalloc.start()
    began = time.process_time()
    state = read_state("gpt-1t+adam-mixed@tp=8,pp=64")
    shares = state.shares(65536)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.parameters > 10**12
    assert shares.nbytes.sum() == pytest.approx(state.nbytes, rel=0.001)
    assert peak < 1 << 30
    assert time.process_time() - began < 60  # a backstop; benchmarks measure
