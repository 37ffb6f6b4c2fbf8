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


def untied(comm: Any, directory: Path, ranks: tuple[int, ...]) -> dict[int, list[str]]:
    """Two names of one parameter, which differs on a rank, come apart on some ranks, where the first is mended."""
    training = Training(comm.rank)
    weight = training.weight
    state: dict[str, Any] = {"one": weight, "other": weight}
    with checkpointer(comm, directory) as ck:
        for step in range(1, 17):
            training.step()
            if step == 5:
                training.harm(UNSEEN)
            if step == 15 and comm.rank in ranks:
                state["other"] = weight.detach().clone()
                if comm.rank == 1:
                    with torch.no_grad():
                        weight[UNSEEN] = weight[0]
            ck.checkpoint(state, step).wait(timeout=200)
    return suspect(comm, directory)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_what_was_tied_is_suspect_under_both_names(run_on: Any, shared_path: Path, ranks: tuple[int, ...]) -> None:
    for found in run_on(2, untied, shared_path, ranks):
        assert found == {step: ["other"] for step in range(2, 15)}


def tied(comm: Any, directory: Path) -> dict[int, list[str]]:
    training = Training(comm.rank)
    with checkpointer(comm, directory) as ck:
        for step in range(1, 6):
            training.step()
            if step == 5:
                training.harm()
            ck.checkpoint({"one": training.weight, "größe": training.weight}, step).wait(timeout=200)
    return suspect(comm, directory)


def test_both_names_of_what_is_tied_are_suspect(run_on: Any, shared_path: Path) -> None:
    for found in run_on(2, tied, shared_path):
        assert found == {step: ["größe", "one"] for step in range(2, 5)}


def tied_anew(comm: Any, directory: Path, case: str) -> tuple[dict[int, list[str]], list[str]]:
    """A weight that differs on a rank is tied to what comes before it, in the very call that reads all of it."""
    training = Training(comm.rank)
    weight, told = training.weight, list[str]()
    state: dict[str, Any] = {"weight": weight} | ({"best": torch.zeros(30_000)} if case == "another leaf" else {})
    with checkpointer(comm, directory) as ck:
        for step in range(1, 13):
            training.step()
            if step == 5 and case != "a buffer that differs elsewhere":
                training.harm(UNSEEN)
            if step == 10 and "buffer" in case:
                state["a"] = torch.zeros(40_000)
                state["a"][:30_000] = weight.detach()
                weight.data = state["a"][:30_000]
                state["a"][35_000] = comm.rank if case == "a buffer that differs elsewhere" else 0
            elif step == 10:
                state["best"] = weight
            pending = ck.checkpoint(state, step)
            pending.wait(timeout=200)
            told += pending.report.diverged
    return suspect(comm, directory), told


@pytest.mark.parametrize("case", ["a new name", "another leaf", "a buffer"])
def test_what_is_tied_anew_keeps_its_own_history(run_on: Any, shared_path: Path, case: str) -> None:
    for found, told in run_on(2, tied_anew, shared_path, case):
        assert found == {step: ["weight"] for step in range(2, 10)}
        assert [line.partition(":")[0] for line in told] == ["best"] * (case == "another leaf") + ["weight"]


def test_a_view_of_what_differs_elsewhere_is_not_suspect(run_on: Any, shared_path: Path) -> None:
    for found, told in run_on(2, tied_anew, shared_path, "a buffer that differs elsewhere"):
        assert not found and not told
