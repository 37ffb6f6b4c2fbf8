"""Leaves that come to differ on some ranks are found, at once or in turn; what was saved meanwhile is suspect."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from deeppart.state.compare import SLICES
from tests.mpi.suspect_training import Training
from tests.unit.cli_support import call_json

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]

ROWS = 20_000


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), timeout=30.0, keep={"persistent": 0}, **settings)


def equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def fill_rows(buffer: Any, rank: int, turn: int, rows: int) -> None:
    buffer[turn * rows : (turn + 1) * rows] = rank + 1


def fill_growing(buffer: Any, rank: int, turn: int, rows: int) -> None:
    buffer[turn * turn : (turn + 1) ** 2] = rank + 1


def fill_ring(buffer: Any, rank: int, turn: int, rows: int) -> None:
    for at in range(rows):
        buffer[(turn * rows + at) % len(buffer)] = 100 * rank + at


def fill_data(buffer: Any, rank: int, turn: int, rows: int) -> None:
    buffer.data[turn, 0] = rank


def fill_numpy(buffer: Any, rank: int, turn: int, rows: int) -> None:
    buffer.numpy()[turn, 0] = rank


def fill_bits(buffer: Any, rank: int, turn: int, rows: int) -> None:
    buffer[2 * (turn * rows) + rank] = True


BUFFERS: dict[str, tuple[Callable[[], Any], Callable[..., None], int]] = {
    "1 row": (lambda: torch.zeros(ROWS, 8), fill_rows, 1),
    "10 rows": (lambda: torch.zeros(ROWS, 8), fill_rows, 10),
    "1000 rows": (lambda: torch.zeros(ROWS, 8), fill_rows, 1000),
    "growing": (lambda: torch.zeros(ROWS, 8), fill_growing, 1),
    "numpy": (lambda: np.zeros((ROWS, 8), dtype=np.float32), fill_rows, 1),
    "bitmap": (lambda: torch.zeros(500_000, dtype=torch.bool), fill_bits, 1),
    "ring": (lambda: torch.zeros(9000, 2, dtype=torch.float64), fill_ring, 3),
    "every other row": (lambda: torch.zeros(2 * ROWS, 8)[::2], fill_rows, 1),
    "not counted": (lambda: torch.zeros(ROWS, 8), fill_data, 1),
    "frozen": (lambda: torch.nn.Parameter(torch.zeros(ROWS, 8), requires_grad=False), fill_data, 1),
    "through numpy": (lambda: torch.zeros(ROWS, 8), fill_numpy, 1),
    "transposed": (lambda: torch.zeros(8, ROWS).t(), fill_rows, 1),
}


def filled(comm: Any, directory: Path, name: str) -> tuple[list[tuple[str, ...]], bool, int]:
    """A buffer that all ranks hold alike at first and each fills for itself, a little between checkpoints."""
    make, fill, rows = BUFFERS[name]
    buffer, reported, saved = make(), [], []
    with deeppart.Checkpointer(config(directory), comm) as ck:
        for step in range(1, 6):
            if step > 1:
                fill(buffer, comm.rank, step, rows)
            pending = ck.checkpoint({"buffer": buffer, "same": torch.ones(30_000)}, step)
            pending.wait(timeout=200)
            reported.append(pending.report.diverged)
            saved.append(buffer.copy() if isinstance(buffer, np.ndarray) else buffer.clone())
        same = True
        for step in (2, 5):
            buffer[...] = 0
            ck.restore({"buffer": buffer, "same": torch.ones(30_000)}, step=step)
            same = same and equal(buffer, saved[step - 1])
    return reported, same, len(list(directory.glob("suspect-*")))


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_of_each_rank_is_found_at_the_next_checkpoint(run_on: Any, shared_path: Path, name: str) -> None:
    for reported, same, records in run_on(2, filled, shared_path, name):
        assert [len(each) for each in reported] == [0, 1, 0, 0, 0]
        assert reported[1] == ("buffer: rank 0 holds other bytes than rank 1",)
        assert same, "every rank gets its own back, of the first step that differs too"
        assert records == 0, "no earlier step is suspect"


class Normed(torch.nn.Module):
    """Statistics of the rank's own data, as of a BatchNorm, larger than what is always compared."""

    def __init__(self) -> None:
        super().__init__()
        self.norm: Any = torch.nn.BatchNorm1d(20_000)


def normed(comm: Any, directory: Path) -> tuple[list[tuple[str, ...]], bool]:
    model, reported = Normed(), []
    with deeppart.Checkpointer(config(directory), comm) as ck:
        for step in range(1, 5):
            if step == 3:
                model.norm(torch.full((4, 20_000), float(comm.rank)))
            pending = ck.checkpoint(model, step)
            pending.wait(timeout=200)
            reported.append(pending.report.diverged)
        mine = model.norm.running_mean.clone()
        model.norm.running_mean.zero_()
        ck.restore(model)
    return reported, torch.equal(mine, model.norm.running_mean)


def test_statistics_of_a_module_are_found_at_the_next_checkpoint(run_on: Any, shared_path: Path) -> None:
    for reported, same in run_on(2, normed, shared_path):
        assert [len(each) for each in reported] == [0, 0, 1, 0]
        assert reported[2][0].startswith("norm.running_mean: ")
        assert same


def unseen(comm: Any, directory: Path) -> tuple[int, tuple[str, ...], list[str], int, list[Any]]:
    """One element of a trained weight is changed on rank 1, where the slices of the next steps do not lie."""
    training, loaded = Training(comm.rank), list[Any]()
    state = {"weight": training.weight}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            found, step, lines = 0, 0, tuple[str, ...]()
            while not found and step < SLICES + 20:
                step += 1
                training.step()
                if step == 10:
                    training.harm(12_345)
                pending = ck.checkpoint(state, step)
                pending.wait(timeout=200)
                lines = pending.report.diverged
                found = step if lines else 0
            ck.restore(state, step=found - 1)
            explanation = [line for line in ck.explanation if "suspect" in line]
            ck.restore(state, step=5)
            clean = len([line for line in ck.explanation if "suspect" in line])
    for each in caught:
        if issubclass(each.category, deeppart.SuspectStepWarning):
            loaded.append(str(each.message))
    return found, lines, explanation, clean, loaded


@pytest.mark.timeout(240)
def test_an_element_of_a_trained_leaf_is_found_in_turn_and_makes_steps_suspect(run_on: Any, shared_path: Path) -> None:
    results = run_on(2, unseen, shared_path)
    found = results[0][0]
    assert 10 < found < 10 + SLICES
    for rank, (when, lines, explanation, clean, warned) in enumerate(results):
        assert when == found
        assert lines[0].startswith("weight: rank 0 holds other bytes than rank 1")
        assert "suspect: last compared in full at step 1" in lines[0]
        assert len(explanation) == 1 and f"step {found - 1} is suspect: weight" in explanation[0]
        assert clean == 1, "step 5 was not compared in full either before it was found"
        assert len(warned) == 2 * (rank == 0)
    if run_on(2, lambda comm: comm.rank, *())[0] == 0:
        listing = {step.step: [leaf.path for leaf in step.suspect] for step in list_directory(shared_path).steps}
        assert listing == {step: ["weight"] * (1 < step < found) for step in range(1, found + 1)}
        with pytest.warns(deeppart.SuspectStepWarning, match="weight"):
            deeppart.load(shared_path, step=found - 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            deeppart.load(shared_path, step=1)
            deeppart.load(shared_path, step=found)


def verified(comm: Any, directory: Path) -> list[int]:
    training, found = Training(comm.rank), []
    with deeppart.Checkpointer(config(directory, replicated="verify"), comm) as ck:
        for step in range(1, 6):
            training.step()
            if step == 4:
                training.harm(12_345)
            found.append(len(ck.checkpoint({"weight": training.weight}, step).report.diverged))
    return found


def test_verify_finds_a_single_element_of_a_trained_leaf_at_once(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, verified, shared_path) == [[0, 0, 0, 1, 0]] * 2


def without_steps(comm: Any, directory: Path) -> list[int]:
    training, found = Training(comm.rank), []
    with deeppart.Checkpointer(config(directory), comm) as ck:
        for step in range(1, 6):
            if step < 4:
                training.step()
            else:
                training.harm(12_345)
            found.append(len(ck.checkpoint({"weight": training.weight}, step).report.diverged))
    return found


def test_without_a_step_since_the_last_checkpoint_all_is_compared(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, without_steps, shared_path) == [[0, 0, 0, 1, 0]] * 2


def under_two_names(comm: Any, directory: Path, modes: dict[str, str], tied: bool) -> tuple[list[int], bool, bool]:
    """A weight that comes to differ has two names, for which the user has asked for different things."""
    training, found = Training(comm.rank), list[int]()
    state: dict[str, torch.Tensor] = {"a": training.weight, "w": training.weight}
    if not tied and comm.rank:  # on this rank the names are those of two tensors
        state["a"] = torch.zeros(30_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.DeeppartWarning)
        with deeppart.Checkpointer(replace(config(directory), replicated=modes), comm) as ck:
            for step in range(1, 6):
                training.step()
                if step == 3:
                    training.harm(12_345)  # which no turn of a short test compares
                pending = ck.checkpoint(state, step)
                pending.wait(timeout=200)
                found += [step] * len(pending.report.diverged)
        before = {name: leaf.detach().clone() for name, leaf in state.items()}
        state = {name: torch.zeros(30_000) for name in state}
        with deeppart.Checkpointer(replace(config(directory), replicated=modes), comm) as ck:
            ck.restore(state)
    return found, torch.equal(state["a"], before["a"]), torch.equal(state["w"], before["w"])


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        ({"w": "none", "*": "auto"}, []),
        ({"a": "none", "*": "all"}, []),
        ({"a": "all", "w": "verify"}, [3, 3]),
        ({"a": "auto", "w": "verify"}, [3, 3]),
        ({"a": "verify", "w": "all"}, [3, 3]),
    ],
    ids=str,
)
def test_a_leaf_with_two_names_is_treated_as_the_stricter_mode_asks(
    run_on: Any, shared_path: Path, modes: dict[str, str], found: list[int]
) -> None:
    assert run_on(2, under_two_names, shared_path, modes, True) == [(found, True, True)] * 2


def test_names_that_are_tied_on_one_rank_alone_go_by_their_own_modes(run_on: Any, shared_path: Path) -> None:
    """Else the ranks would not agree on what is compared."""
    for _, _, good in run_on(2, under_two_names, shared_path, {"w": "none", "*": "auto"}, False):
        assert good


def embedded(comm: Any, directory: Path, seed: int) -> int:
    """1 % of the rows of a trained embedding differ on one rank from step 5 on."""
    torch.manual_seed(seed)
    rows = torch.randperm(2000)[:20]
    table = torch.nn.Embedding(2000, 16)
    optimizer = torch.optim.AdamW(table.parameters(), lr=1e-3)
    with deeppart.Checkpointer(config(directory, every={"persistent": 50}), comm) as ck:
        for step in range(1, 30):
            for _ in range(2):
                optimizer.zero_grad()
                table.weight.square().sum().backward()
                optimizer.step()
            if step == 5 and comm.rank == 1:
                with torch.no_grad():
                    table.weight[rows] += 1e-3
            pending = ck.checkpoint({"table": table, "optimizer": optimizer}, step)
            if pending.report.diverged:
                return step
    return 0


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_a_trained_embedding_are_found_within_16_checkpoints(run_on: Any, shared_path: Path, seed: int) -> None:
    for found in run_on(2, embedded, shared_path, seed):
        assert 5 <= found < 5 + 16


def failing(comm: Any, directory: Path) -> tuple[int, bool, int]:
    """The checkpoint that finds a difference fails on one rank."""
    training, found = Training(comm.rank), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            for step in range(1, SLICES + 20):
                training.step()
                if step == 3:
                    training.harm()
                capture = ck._saver.capture
                if step == 3 and comm.rank == 1:
                    ck._saver.capture = no_memory  # type: ignore[method-assign, assignment]
                pending = ck.checkpoint({"weight": training.weight}, step)
                ck._saver.capture = capture  # type: ignore[method-assign]
                if pending.report.diverged:
                    found = step
                    with pytest.raises(deeppart.CheckpointError):
                        pending.wait(timeout=200)
                    break
                pending.wait(timeout=200)
    return found, True, len(list(directory.glob("suspect-*")))


def no_memory(*arguments: Any) -> Any:
    raise MemoryError("no room")


def test_the_record_is_made_even_if_the_checkpoint_that_found_it_fails(run_on: Any, shared_path: Path) -> None:
    results = run_on(2, failing, shared_path)
    assert results[0] == (3, True, 1)


def on_nodes(comm: Any, directory: Path) -> tuple[int, list[str], list[str]]:
    """The steps that turn out to be suspect are on nodes alone; another life of the job restores one."""
    levels = {"local": 0, "partner": 0, "persistent": 0}
    local = str(directory / "nodes" / "{node}")
    own = replace(config(directory / "ckpt"), local_dir=local, node_size=1, every={"persistent": 0}, keep=levels)
    training, found = Training(comm.rank), 0
    with deeppart.Checkpointer(own, comm) as ck:
        for step in range(1, 6):
            training.step()
            if step == 4:
                training.harm()
            pending = ck.checkpoint({"weight": training.weight}, step)
            pending.wait("local", timeout=200)
            found = found or step * bool(pending.report.diverged)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(own, comm) as ck:
            ck.restore({"weight": training.weight}, step=3)
            explanation = [line for line in ck.explanation if "suspect" in line]
    said = [str(each.message) for each in caught if issubclass(each.category, deeppart.SuspectStepWarning)]
    return found, explanation, said


def test_steps_on_nodes_alone_are_suspect_too(run_on: Any, shared_path: Path) -> None:
    for rank, (found, explanation, said) in enumerate(run_on(2, on_nodes, shared_path)):
        assert found == 4
        assert len(explanation) == 1 and "step 3 is suspect: weight" in explanation[0]
        assert len(said) == (rank == 0)
    if run_on(2, lambda comm: comm.rank)[0] == 0:
        local = [word for node in (shared_path / "nodes").iterdir() for word in ("--local", node)]
        listed = {step["step"]: step["suspect"] for step in call_json("ls", shared_path / "ckpt", *local)["steps"]}
        assert [bool(listed[step]) for step in (1, 2, 3, 4)] == [False, True, True, False], listed
        verified = call_json("verify", shared_path / "ckpt", *local)["nodes"]["suspect"]
        assert [(attempt["step"], [leaf["path"] for leaf in leaves]) for attempt, leaves in verified] == [
            (2, ["weight"]),
            (3, ["weight"]),
        ]


def converting(comm: Any, directory: Path, capture: str) -> tuple[list[str], list[int]]:
    """The user's own conversions, in the way in which torch exchanges the tensors in a module, at every moment."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 300))
    net[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(net[1].parameters(), lr=1e-3)
    restored: list[str] = []
    diverged: list[int] = []

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def convert() -> None:
        net.double()
        net.float()

    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with deeppart.Checkpointer(config(directory, capture=capture), comm) as ck:
            state = {"net": net, "optimizer": optimizer, "parameters": dict(net.named_parameters())}
            for number in range(1, 9):
                step()
                pending = ck.checkpoint(state, number)
                diverged.append(len(pending.report.diverged))
                saved = {name: value.clone() for name, value in net.state_dict().items()}
                if number % 2:
                    step()
                if number % 3:
                    pending.wait(timeout=200)
                convert()
                pending.wait(timeout=200)
                convert()
                found = deeppart.load(directory, step=number)["net"] if comm.rank == 0 else saved
                restored += [name for name in saved if not torch.equal(saved[name], found[name])]
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    return restored, diverged


@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_modules_can_be_converted_at_any_moment(run_on: Any, shared_path: Path, capture: str) -> None:
    """torch.utils.swap_tensors refuses tensors that anybody has a weak reference to."""
    for differing, diverged in run_on(2, converting, shared_path, capture):
        assert differing == [] and diverged == [0] * 8
