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


def frozen(comm: Any, directory: Path, how: str) -> tuple[dict[int, list[str]], list[int]]:
    """A frozen parameter is written to unseen on one rank, and read later for another reason."""
    weight, told = torch.nn.Parameter(torch.zeros(30_000), requires_grad=False), []
    with checkpointer(comm, directory) as ck, torch.no_grad():
        for step in range(1, 12):
            if step == 5 and comm.rank == 1:
                weight.data[UNSEEN] = 7
            if step == 10:
                if how == "counted":
                    weight.add_(1)
                elif how == "other memory":
                    weight.data = weight.data.clone()
                elif comm.rank == 1:
                    weight[5] = weight[5]
            pending = ck.checkpoint({"weight": weight}, step)
            pending.wait(timeout=200)
            told += [step] * len(pending.report.diverged)
    return suspect(comm, directory), told


@pytest.mark.parametrize("how", ["counted", "other memory", "counted on one rank"])
def test_what_torch_vouched_for_was_not_compared(run_on: Any, shared_path: Path, how: str) -> None:
    for found, told in run_on(2, frozen, shared_path, how):
        assert found == {step: ["weight"] for step in range(2, 10)} and told == [10]


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


def gone_again(comm: Any, directory: Path, how: str) -> tuple[dict[int, list[str]], list[int], bool, list[int]]:
    """Ranks differ at one step and are alike again before the next one, which compares what trails that step."""
    training, told, held = Training(comm.rank), list[int](), dict[int, torch.Tensor]()
    with checkpointer(comm, directory, capture="lazy") as ck:
        for step in range(1, 9):
            training.step()
            if step == 5:
                training.harm()
            if step == 6 and how in ("a broadcast", "a new structure"):
                with torch.no_grad():
                    training.weight.copy_(torch.from_numpy(comm.bcast(training.weight.detach().numpy().copy())))
            if step == 6 and how == "a restore":
                ck.restore({"weight": training.weight}, step=4)
            held[step] = training.weight.detach().clone()
            added = {"another": torch.zeros(3)} if step >= 6 and how == "a new structure" else {}
            pending = ck.checkpoint({"weight": training.weight} | added, step)
            pending.wait(timeout=200)
            told += [step for text in pending.report.diverged if "hold the same bytes again" in text]
        layout = ck._saver._classifier.layout
        assert layout is not None
        replicated = not layout.per_rank.any()
    found = suspect(comm, directory)
    loaded = {step: deeppart.load(directory, step=step, rank=comm.rank)["weight"] for step in held}
    return found, told, replicated, [step for step in held if not torch.equal(loaded[step].detach(), held[step])]


@pytest.mark.parametrize("how", ["a broadcast", "a restore", "a new structure"])
def test_a_difference_that_is_gone_when_it_is_found_is_told_of(run_on: Any, shared_path: Path, how: str) -> None:
    for found, told, replicated, wrong in run_on(2, gone_again, shared_path, how):
        assert set(wrong) <= {5} and told == [6] and replicated
        assert found == {step: ["weight"] for step in range(2, 6)}


def alike_all_along(comm: Any, directory: Path) -> tuple[list[int], int]:
    """All ranks write the same bytes to a frozen parameter unseen; later it is read again on one of them."""
    weight, told = torch.nn.Parameter(torch.zeros(30_000), requires_grad=False), []
    with checkpointer(comm, directory) as ck, torch.no_grad():
        for step in range(1, 9):
            if step == 3:
                weight.data[UNSEEN] = 7
            if step == 5 and comm.rank == 0:
                weight[5] = weight[5]
            pending = ck.checkpoint({"weight": weight}, step)
            pending.wait(timeout=200)
            told += [step] * len(pending.report.diverged)
    return told, pending.report.per_rank_bytes


def test_a_leaf_that_is_alike_stays_replicated(run_on: Any, shared_path: Path) -> None:
    """It is told of: what ranks held in between is not known."""
    assert run_on(2, alike_all_along, shared_path) == [([5], 0)] * 2
