"""Who holds what: groups of ranks with equal leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from deeppart_simulator.workload.layout import read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor
from deeppart_simulator.workload.states import read_state, state_of

# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        ("tp=2", 8),
        ("pp=2", 8),
        ("tp=2,pp=2", 8),
        ("fsdp", 8),
        ("hsdp=2", 8),
        ("tp=2,hsdp=2", 8),
        ("tp=2,pp=3,zero1", 24),
    ],
)
def test_every_leaf_is_whole_among_the_groups(layout: str, ranks: int) -> None:
    """All groups together hold every byte once."""
    state = read_state(f"bert-base+adam@{layout}")
    assert sum(int(groups.leaves.nbytes.sum()) * len(groups.ranks) for groups in state.on(ranks)) == state.nbytes
    for groups in state.on(ranks):
        assert len(np.unique(groups.ranks)) == groups.ranks.size


@pytest.mark.parametrize(("rows", "columns", "shards"), [(1024, 3, 8), (10, 4, 4), (3, 5, 8), (1, 7, 4), (9, 1, 4)])
def test_fsdp_divides_by_rows_as_torch_does(rows: int, columns: int, shards: int) -> None:
    """``fully_shard`` gives rank r the r-th of ``torch.chunk(tensor, ranks)``, and nothing where there are fewer."""
    tensor = Tensor(Parameter("w", (rows, columns), 0), "w", "float32", (rows, columns))
    state = state_of("one", [tensor], "test", read_layout("fsdp"))
    held = np.zeros(shards, dtype=np.int64)
    for groups in state.on(shards):
        held[groups.ranks.ravel()] += int(groups.leaves.nbytes.sum())
    chunks = [4 * chunk.numel() for chunk in torch.empty(rows, columns).chunk(shards)]
    assert held.tolist() == chunks + [0] * (shards - len(chunks))
    assert state.shares(shards).nbytes.tolist() == held.tolist()


def test_what_every_rank_has_for_itself_is_saved_by_itself() -> None:
    rng = Tensor(Parameter("rng", (1250,), -1), "rng", "int32", (1250,))
    state = replace(read_state("tensors-4x4KiB"), own=(rng,))
    shares = state.shares(4)
    assert shares.nbytes.tolist() == [4096 + 5000] * 4 and shares.spans.tolist() == [2] * 4
