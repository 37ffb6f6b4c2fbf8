"""The simulator's plan of a sharded state is the library's: the same bytes of the same boxes, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.workload.external import read_external
from deeppart_simulator.workload.layout import read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor
from deeppart_simulator.workload.states import State, state_of

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


def spans(state: State, kappa: float | None) -> list[list[list[object]]]:
    """As the ranks tell them."""
    return [
        sorted([path, list(box.offset), list(box.sizes), start, length] for path, box, start, length in of_rank)
        for of_rank in state.spans(RANKS, kappa=kappa)
    ]


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
