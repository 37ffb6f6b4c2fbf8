"""The alarm: leaves that all ranks held alike come to differ on some of them, and the warning says where."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart

pytestmark = pytest.mark.mpi(min_size=4)

ELEMENTS = 60_000


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    layers = {f"layer{number}": torch.rand(ELEMENTS, generator=generator) for number in range(4)}
    return {"model": layers, "bias": torch.rand(10, generator=generator), "step": step}


def training(comm: Any, directory: Path, damage: str) -> tuple[list[str], list[tuple[str, ...]], bool]:
    """Three steps on replicas; after the second, something happens to those of some ranks."""
    settings: dict[str, Any] = {"local_dir": str(directory / "local" / "{node}"), "node_size": 1, "timeout": 20.0}
    reported, mine = [], {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory / "ckpt"), **settings), comm) as ck:
            for step in (1, 2, 3, 4):
                mine = state(step)
                if step >= 3:
                    DAMAGE[damage](comm.rank, mine)
                pending = ck.checkpoint(mine, step)
                pending.wait(timeout=200)
                reported.append(pending.report.diverged)
            back = state(0)
            assert ck.restore(back) == 4
    same = all(torch.equal(back["model"][name], mine["model"][name]) for name in mine["model"])
    texts = [str(each.message) for each in caught if issubclass(each.category, deeppart.ReplicaDivergenceWarning)]
    return texts, reported, same and torch.equal(back["bias"], mine["bias"])


def one_rank_has_gone_astray(rank: int, mine: dict[str, Any]) -> None:
    if rank == 2:
        mine["model"]["layer1"][: ELEMENTS // 2] += 1e-3
        mine["model"]["layer3"][777] = torch.nextafter(mine["model"]["layer3"][777], torch.tensor(2.0))


def every_rank_goes_its_own_way(rank: int, mine: dict[str, Any]) -> None:
    mine["model"]["layer0"] += rank
    mine["bias"] += rank


def two_halves(rank: int, mine: dict[str, Any]) -> None:
    mine["model"]["layer2"] *= 1 + rank % 2


DAMAGE = {
    "one rank": one_rank_has_gone_astray,
    "every rank": every_rank_goes_its_own_way,
    "halves": two_halves,
}


@pytest.mark.parametrize(
    ("damage", "lines"),
    [
        # layer3 differs in a single bit, which sampling would hardly find: the alarm makes everything be compared
        ("one rank", tuple(f"model/layer{number}: rank 2 differs from ranks 0-1 and 3" for number in (1, 3))),
        ("every rank", ("bias: every rank holds other bytes", "model/layer0: every rank holds other bytes")),
        ("halves", ("model/layer2: ranks 0 and 2 hold other bytes than ranks 1 and 3",)),
    ],
)  # fmt: skip
def test_the_alarm_names_leaf_ranks_and_step(
    run_on: Any, shared_path: Path, damage: str, lines: tuple[str, ...]
) -> None:
    results = run_on(4, training, shared_path, damage)
    for rank, (texts, reported, same) in enumerate(results):
        assert same, "every rank gets its own back"
        assert [set(each) for each in reported] == [set(), set(), set(lines), set()], "once, and on every rank"
        assert len(texts) == (rank == 0)
    assert "checkpoint(step=3)" in results[0][0][0] and all(line in results[0][0][0] for line in lines)


def _as_it_is(weight: torch.nn.Parameter, step: int) -> dict[str, Any]:
    return {"weight": weight, "bias": torch.zeros(10), "step": step}


def _left_for_long(weight: torch.nn.Parameter, step: int) -> dict[str, Any]:
    saved = _as_it_is(weight, step)
    return {key: value for key, value in saved.items() if key != "weight"} if 6 <= step < CHANGES else saved


def _tied_before(weight: torch.nn.Parameter, step: int) -> dict[str, Any]:
    return ({"another": weight} if step < CHANGES else {}) | _as_it_is(weight, step)


def _another_dtype(weight: torch.nn.Parameter, step: int) -> dict[str, Any]:
    if step == CHANGES:
        weight.data = weight.data.double()
    return _as_it_is(weight, step)


#: The step at which the state changes, so that all is compared: longer after the first than a turn of comparisons.
CHANGES = 80
FORMS = {each.__name__: each for each in (_left_for_long, _tied_before, _another_dtype)}


def changing_form(comm: Any, directory: Path, form: str) -> tuple[tuple[str, ...], dict[int, bool]]:
    """One element of a trained leaf comes to differ, unseen; then it comes back in another form."""
    weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    settings: dict[str, Any] = {"keep": {"persistent": 0}, "every": {"persistent": 1}, "timeout": 60.0}
    steps = (1, 2, 3, 4, 5, *range(6, CHANGES if form == "_left_for_long" else 6), CHANGES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), **settings), comm) as ck:
            for step in steps:
                weight.grad = torch.ones_like(weight)
                optimizer.step()
                if step == 4 and comm.rank == 1:
                    with torch.no_grad():
                        weight[12_345] += 1  # at none of the places that are looked at before step 6
                pending = ck.checkpoint(FORMS[form](weight, step), step)
                pending.wait(timeout=200)
    suspect = {}
    for step in (4, 5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            deeppart.load(directory, step=step)
        suspect[step] = any(issubclass(each.category, deeppart.SuspectStepWarning) for each in caught)
    comm.Barrier()
    return pending.report.diverged, suspect


@pytest.mark.timeout(110)
@pytest.mark.parametrize("form", FORMS)
def test_a_leaf_that_comes_back_in_another_form_makes_the_steps_before_suspect(
    run_on: Any, shared_path: Path, form: str
) -> None:
    for diverged, suspect in run_on(2, changing_form, shared_path, form):
        (text,) = diverged
        assert text.startswith("weight: ") and "are suspect" in text
        assert suspect == {4: True, 5: True}
