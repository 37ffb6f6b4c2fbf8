"""The simulator's plan of a sharded state is the library's: the same bytes of the same boxes, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.workload.external import read_external
from deeppart_simulator.workload.holding import boxes_at, form_of, kappa_of, plans
from deeppart_simulator.workload.layout import read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor
from deeppart_simulator.workload.states import State, state_of

from deeppart.partition import whole_kappa
from tests.mpi.torchrun import torchrun
from tests.sharded.layouts import HAS_TWO_DIMENSIONS, build, tensors
from tests.sharded.plan_job import KAPPAS

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

RANKS = 4
#: Layout of the job -> of the simulator.
LAYOUTS = {"fsdp": "fsdp", "hsdp": "hsdp=2", "tp-replicas": "tp=2", "tp-dp": "tp=2,fsdp"}
if not HAS_TWO_DIMENSIONS:
    del LAYOUTS["hsdp"], LAYOUTS["tp-dp"]
#: What the model's plan for tensor parallelism divides: end of a path -> dimension.
DIVIDED = {"up.weight": 0, "up.bias": 0, "down.weight": 1}


def simulated(layout: str) -> State:
    """The same state, by shapes alone."""
    found = []
    for path, tensor in tensors(build("replicated", None)):
        name = path.removeprefix("/")
        divided = [dimension for end, dimension in DIVIDED.items() if end in name]
        plain = name in ("plain", "model/seen")  # no parameter, nor an optimizer's moment of one
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        parameter = Parameter(name, shape, 0, divided[0] if divided else None)
        found.append(Tensor(parameter, name, dtype, shape, plain=plain))
    return state_of("small", found, "test", read_layout(layout))


def spans(state: State, kappa: float | None) -> list[list[list[Any]]]:
    """What each rank saves, span by span, as the ranks report it."""
    found: list[list[list[Any]]] = [[] for _ in range(RANKS)]
    groups = state.on(RANKS)
    cost = kappa_of(groups, RANKS) if kappa is None else whole_kappa(kappa)
    for each, numbers, plan in plans(groups, RANKS, "deeppart", cost):
        assert each.kind is not None
        for number in numbers.tolist():
            boxes = [
                boxes_at(form_of(tensor), each.kind, *each.places[number].tolist()) for tensor in each.held.tensors
            ]
            for rank, share in zip(each.ranks[number].tolist(), plan.shares(), strict=True):
                for span in share.spans:
                    tensor, piece = each.held.pieces[span.leaf]
                    box, path = boxes[tensor][piece], each.held.tensors[tensor].path
                    found[rank].append([path, list(box.offset), list(box.sizes), span.start, span.length])
    return [sorted(of_rank) for of_rank in found]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_saves_what_the_simulator_says(layout: str, tmp_path: Path) -> None:
    found = torchrun(RANKS, ["-m", "tests.sharded.plan_job", layout, str(tmp_path)], tmp_path)
    for name, kappa in KAPPAS.items():
        of_ranks = [of_rank[name] for of_rank in found]
        assert len({path for of_rank in of_ranks for path, *_ in of_rank}) == 50
        assert spans(simulated(LAYOUTS[layout]), kappa) == of_ranks
    if "tp" not in layout:  # a checkpoint does not say what tensor parallelism would divide
        state = read_external(tmp_path / "usual", f"@{LAYOUTS[layout]}")
        assert spans(state, None) == [of_rank["usual"] for of_rank in found]
