"""Which steps are suspect when ranks turn out to differ: all since the leaf was last compared in full, whatever came
between, and no other ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from tests.mpi.suspect_training import Training, checkpointer

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]
#: A place that no turn of a short test compares.
UNSEEN = 12_345


def suspect(comm: Any, directory: Path) -> dict[int, list[str]]:
    comm.Barrier()
    steps = list_directory(directory).steps
    return {step.step: [leaf.path for leaf in step.suspect] for step in steps if step.suspect}


def beside_what_rank_0_has(comm: Any, directory: Path, case: str) -> tuple[dict[int, list[str]], int]:
    """Rank 0 has leaves that the others do not have when a replica turns out to differ."""
    training = Training(comm.rank)
    state: dict[str, Any] = {"weight": training.weight}
    if case == "rank0":
        if comm.rank == 0:
            state["best"] = {f"p{number}": torch.zeros(10) for number in range(300)}
    else:
        state["buffer"] = [torch.zeros(10) for _ in range(300 if comm.rank == 0 else 1)]
    told = 0
    with checkpointer(comm, directory, replicated={"best/*": "rank0"} if case == "rank0" else "auto") as ck:
        for step in range(1, 7):
            training.step()
            if step == 3:
                training.harm(UNSEEN)
            if step == 6:
                training.harm()
            pending = ck.checkpoint(state, step)
            pending.wait(timeout=200)
            told += len(pending.report.diverged)
    return suspect(comm, directory), told


@pytest.mark.parametrize("case", ["rank0", "lists of other lengths"])
def test_leaves_that_only_one_rank_has_do_not_disturb_the_comparison(run_on: Any, shared_path: Path, case: str) -> None:
    for found, told in run_on(2, beside_what_rank_0_has, shared_path, case):
        assert found == {step: ["weight"] for step in range(2, 6)} and told == 1


def refused(comm: Any, directory: Path) -> tuple[dict[int, list[str]], list[int], bool]:
    """A call that is refused while the structure is new, between the fault and its discovery."""
    training, beside = Training(comm.rank), torch.zeros(10)
    weight = training.weight
    told, was_refused = [], False
    with checkpointer(comm, directory, replicated={"beside": "all"}) as ck:
        for step in range(1, 12):
            training.step()
            if step == 5:
                training.harm(UNSEEN)
            if step == 9:
                try:
                    ck.checkpoint({"weight": weight, "beside": beside.double() if comm.rank else beside}, step)
                except deeppart.DeeppartError:
                    was_refused = True
            state = {"weight": weight, "beside": beside} | ({"extra": 1} if step >= 9 else {})
            pending = ck.checkpoint(state, step)
            pending.wait(timeout=200)
            told += [step] * len(pending.report.diverged)
    return suspect(comm, directory), told, was_refused


def test_a_refused_call_forgets_nothing(run_on: Any, shared_path: Path) -> None:
    for found, told, was_refused in run_on(2, refused, shared_path):
        assert was_refused
        assert found == {step: ["weight"] for step in range(2, 9)} and told == [9]
