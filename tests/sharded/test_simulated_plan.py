"""The simulator's plan of a sharded state is the library's: the same bytes of the same boxes, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from deeppart_simulator.workload.external import read_external
from deeppart_simulator.workload.holding import boxes_at, form_of, kappa_of, plans
from deeppart_simulator.workload.layout import read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor
from deeppart_simulator.workload.states import State, state_of

import deeppart
from deeppart.model import Box
from deeppart.partition import whole_kappa
from deeppart.save import saver
from deeppart.save.share_planning import plan_share
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.paths.keys import readable
from tests.sampling import sampled
from tests.sharded.layouts import HAS_TWO_DIMENSIONS, build, fill, mesh_of, tensors
from tests.sharded.ranks import run_job

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

RANKS = 4
#: Layout of the job -> of the simulator.
LAYOUTS = {"fsdp": "fsdp", "hsdp": "hsdp=2", "tp-replicas": "tp=2", "tp-dp": "tp=2,fsdp"}
if not HAS_TWO_DIMENSIONS:
    del LAYOUTS["hsdp"], LAYOUTS["tp-dp"]
#: What the model's plan for tensor parallelism divides: end of a path -> dimension.
DIVIDED = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
KAPPAS = {"usual": None, "64": 64}


def saving(directory: Path, layouts: str) -> dict[str, Any]:
    """Save in each of these layouts; the share of this rank that was planned for it, span by span."""
    planned: list[Any] = []

    def recorded(comm: Any, state_layout: Any, flat: Any, *rest: Any, **options: Any) -> Any:
        share = plan_share(comm, state_layout, flat, *rest, **options)
        assert isinstance(share, ShareLayout), share
        boxes = {n: box for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
        spans = share.spans[["leaf", "start", "length"]].tolist()
        whole = [Box.whole(each.shape) for each in state_layout.types]
        planned.append(
            [
                [readable(flat.arrays[leaf].path), *boxes.get(leaf, whole[leaf]), at, length]
                for leaf, at, length in spans
            ]
        )
        return share

    vars(saver)["plan_share"] = recorded
    told = dict[str, Any]()
    for layout in layouts.split(","):
        state, told[layout] = build(layout, mesh_of(layout, RANKS)), {}
        for name, kappa in KAPPAS.items():
            root = str(directory / layout / name)
            with deeppart.Checkpointer(persistent_dir=root, timeout=60, kappa=kappa) as ck:
                fill(state, 1)
                ck.checkpoint(state, 1).wait("persistent")
            told[layout][name] = sorted(planned.pop())
            assert not planned
        dist.barrier()
    return told


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


def test_every_rank_saves_what_the_simulator_says(tmp_path: Path) -> None:
    layouts = sampled(LAYOUTS, 3)
    found = run_job(RANKS, saving, tmp_path, ",".join(layouts))
    for layout, simulators in ((each, LAYOUTS[each]) for each in layouts):
        for name, kappa in KAPPAS.items():
            of_ranks = [of_rank[layout][name] for of_rank in found]
            assert len({path for of_rank in of_ranks for path, *_ in of_rank}) == 50
            assert spans(simulated(simulators), kappa) == of_ranks, layout
        if "tp" not in layout:  # a checkpoint does not say what tensor parallelism would divide
            state = read_external(tmp_path / layout / "usual", f"@{simulators}")
            assert spans(state, None) == [of_rank[layout]["usual"] for of_rank in found], layout
