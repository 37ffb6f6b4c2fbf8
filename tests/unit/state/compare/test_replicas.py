"""Equal shards of several ranks: compared among these alone, whoever else is in the job."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import Comm
from deeppart.errors import DeeppartWarning
from deeppart.model import Box
from deeppart.save import warnings as save_warnings
from tests.unit.comm.worlds import LIMIT_S
from tests.unit.sharded_states import checkpointer, on_ranks, piece

WHOLE = torch.arange(60_000.0).view(200, 300)
TOP, BOTTOM = Box((0, 0), (100, 300)), Box((100, 0), (100, 300))
#: Ranks 0 and 2 hold one half, ranks 1 and 3 the other one; of the small tensor ranks 0 to 2 hold all.
BOXES = (TOP, BOTTOM, TOP, BOTTOM)


def states() -> list[dict[str, Any]]:
    small = torch.arange(12.0).view(3, 4)
    return [
        {"w": piece(WHOLE, BOXES[rank]), "norm": piece(small, Box.whole((3, 4)) if rank < 3 else None), "n": 1}
        for rank in range(4)
    ]


def told_by(root: Path, edit: Callable[[int, int, dict[str, Any]], None], steps: int = 2, **settings: Any) -> list[str]:
    """What rank 0 is told, if the states are changed before each step; all steps are saved."""
    made = states()

    def saved(comm: Comm) -> None:
        with checkpointer(root, comm, keep={"persistent": 9}, **settings) as ck:
            for step in range(1, steps + 1):
                edit(step, comm.rank, made[comm.rank])
                ck.checkpoint(made[comm.rank], step).wait("persistent", timeout=LIMIT_S)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeeppartWarning)
        on_ranks(4, saved)
    return [
        f"{each.category.__name__}: {each.message}" for each in caught if issubclass(each.category, DeeppartWarning)
    ]


def nothing(step: int, rank: int, mine: dict[str, Any]) -> None:
    """All ranks hold the same."""


def at_first(step: int, rank: int, mine: dict[str, Any]) -> None:
    """Rank 3 has another half than rank 1, from the beginning on."""
    if (step, rank) == (1, 3):
        mine["w"][7, 7] += 1


@pytest.mark.parametrize("level", ["auto", "verify"])
def test_equal_ones_are_saved_once_and_nothing_is_told(tmp_path: Path, level: str) -> None:
    assert told_by(tmp_path, nothing, replicated=level) == []
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("step-000000000002-*/part-*"))]
    assert len(sizes) == 4 and max(sizes) < 1.2 * min(sizes) < 1.2 * WHOLE.nbytes / 3
    assert torch.equal(deeppart.load(tmp_path)["w"], WHOLE)


def averages(step: int, rank: int, mine: dict[str, Any]) -> None:
    """What ranks compute alike, without an optimizer; rank 2 goes astray in a fiftieth of it, from step 3 on."""
    mine["ema"] = {"w": torch.full((50_000,), float(step))}
    if rank == 2 and step >= 3:
        mine["ema"]["w"][16_500:17_500] += 1


def test_what_rotates_is_compared_a_slice_at_a_time_and_found_to_differ_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_warnings, "HASHED_BYTES", 150_000)
    [astray] = told_by(tmp_path, averages, steps=12, replicated={"ema/*": "rotate"})
    assert astray.startswith("ReplicaDivergenceWarning") and "ema/w: rank 2 differs" in astray
    steps = re.search(r"steps (\d+) to (\d+) are suspect", astray)
    assert steps is not None and int(steps[1]) == 2 and 3 <= int(steps[2]) < 12


def test_averages_of_models_rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(400, 400, bias=False)

    def averaged(step: int, rank: int, mine: dict[str, Any]) -> None:
        average = mine.setdefault("ema", torch.optim.swa_utils.AveragedModel(model))
        with torch.no_grad():
            average.module.weight += step
            if rank == 2 and step >= 3:
                average.module.weight[132:140] += 1

    monkeypatch.setattr(save_warnings, "HASHED_BYTES", 150_000)
    [astray] = told_by(tmp_path, averaged, steps=12)
    assert astray.startswith("ReplicaDivergenceWarning") and "ema/module.weight: rank 2 differs" in astray
    steps = re.search(r"steps (\d+) to (\d+) are suspect", astray)
    assert steps is not None and int(steps[1]) == 2 and 3 <= int(steps[2]) < 12


def test_large_leaves_that_are_read_in_full_every_time_are_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alike(step: int, rank: int, mine: dict[str, Any]) -> None:
        mine["ema"] = {"w": torch.full((50_000,), float(step))}

    monkeypatch.setattr(save_warnings, "HASHED_BYTES", 150_000)
    [notice] = told_by(tmp_path, alike, steps=4)
    assert "reads 320 kB in full" in notice and "ema/w" in notice and "'rotate'" in notice
    assert told_by(tmp_path / "verified", alike, steps=3, replicated="verify") == []


def test_what_differs_from_the_beginning_is_each_ranks_own(tmp_path: Path) -> None:
    (text,) = told_by(tmp_path, at_first)
    assert text.startswith("PerRankNotice") and ": w\n" in text
    other = WHOLE.clone()
    other[107, 7] += 1
    assert torch.equal(deeppart.load(tmp_path)["w"], WHOLE)
    assert torch.equal(deeppart.load(tmp_path, rank=3)["w"], other)


def test_trusted_ones_are_not_compared(tmp_path: Path) -> None:
    assert told_by(tmp_path, at_first, replicated="all") == []


def test_those_declared_each_ranks_own_are_saved_by_each_without_a_word(tmp_path: Path) -> None:
    assert told_by(tmp_path, at_first, replicated={"w": "none", "*": "auto"}) == []
    other = WHOLE.clone()
    other[107, 7] += 1
    assert torch.equal(deeppart.load(tmp_path, rank=3)["w"], other)
    assert torch.equal(deeppart.load(tmp_path, rank=1)["w"], WHOLE)


def test_ranks_whose_counters_differ_over_equal_bytes_compare_all_of_it_once(tmp_path: Path) -> None:
    """As where one rank computes a tensor, and the others receive it."""
    made = [{"w": WHOLE.clone(), "n": 1} for _ in range(4)]

    def saved(comm: Comm) -> list[int]:
        in_full: list[int] = []
        with checkpointer(tmp_path, comm) as ck:
            replicas = ck._saver._replicas
            compare = replicas.compare_in_full

            def noted(*args: Any) -> Any:
                in_full.append(step)
                return compare(*args)

            replicas.compare_in_full = noted  # type: ignore[method-assign, assignment]
            for step in range(1, 6):
                if comm.rank == 1:
                    made[1]["w"].mul_(1)  # type: ignore[attr-defined]
                ck.checkpoint(made[comm.rank], step).wait("persistent", timeout=LIMIT_S)
        return in_full

    assert on_ranks(4, saved) == [[1, 2]] * 4
