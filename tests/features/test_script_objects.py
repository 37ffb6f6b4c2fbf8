"""Random number generators and schedulers in a state, as the objects that they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import deeppart
from deeppart.errors import StateError, UnsupportedLeafError
from deeppart.testing import difference

GENERATORS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand(5, generator=g).tolist()),
    "PCG64": (np.random.default_rng, lambda g: g.random(5).tolist()),
    "Philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda g: g.standard_normal(3).tolist()),
    "MT19937": (np.random.MT19937, lambda g: g.random_raw(3).tolist()),
    "RandomState": (np.random.RandomState, lambda g: g.normal(size=3).tolist()),
    "random": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
}


def save_and_restore(directory: Path, saved: Any, live: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=directory, timeout=20.0) as ck:
        for step in range(3):
            pending = ck.checkpoint(saved, step=step)
        pending.wait(timeout=100)
        ck.restore(live)


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_go_on_where_they_were(tmp_path: Path, name: str) -> None:
    make, draw = GENERATORS[name]
    saved, live = make(1), make(2)
    draw(saved)
    state: dict[str, Any] = {"g": live, "l": [make(3)]}
    save_and_restore(tmp_path, {"g": saved, "l": [saved]}, state)
    assert state["g"] is live
    expected = draw(saved)
    assert draw(live) == expected and draw(state["l"][0]) == expected


def test_another_kind_of_generator_is_refused(tmp_path: Path) -> None:
    save_and_restore(tmp_path, {"g": np.random.MT19937(1)}, {"g": np.random.MT19937(2)})
    with deeppart.Checkpointer(persistent_dir=tmp_path, timeout=20.0) as ck, pytest.raises(StateError, match="path g"):
        ck.restore({"g": np.random.PCG64(1)})


class OldSWALR(swa_utils.SWALR):
    """As torch has it before 2.10: its state holds the function."""

    state_dict = lr_scheduler.LRScheduler.state_dict
    load_state_dict = lr_scheduler.LRScheduler.load_state_dict

    def __init__(self, optimizer: Any, swa_lr: float, anneal_strategy: Any) -> None:
        super().__init__(optimizer, swa_lr, anneal_strategy=anneal_strategy)
        self.anneal_func: Any = self._cosine_anneal if anneal_strategy == "cos" else self._linear_anneal
        del self._anneal_strategy


def schedule(kind: Any, strategy: str) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return kind(optimizer, 0.01, anneal_strategy=strategy)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("kinds", [(OldSWALR, OldSWALR), (OldSWALR, swa_utils.SWALR), (swa_utils.SWALR, OldSWALR)])
def test_swalr_keeps_its_strategy_with_every_torch(tmp_path: Path, strategy: str, kinds: tuple[Any, Any]) -> None:
    saved, live = schedule(kinds[0], strategy), schedule(kinds[1], "cos" if strategy == "linear" else "linear")
    for _ in range(3):
        saved.optimizer.step()
        saved.step()
    save_and_restore(tmp_path, {"s": saved}, {"s": live})
    assert live.anneal_func(0.3) == saved.anneal_func(0.3) and live.last_epoch == 3
    assert deeppart.load(tmp_path)["s"]["_anneal_strategy"] == strategy


def test_a_function_of_ones_own_is_refused(tmp_path: Path) -> None:
    scheduler = schedule(OldSWALR, "cos")
    scheduler.anneal_func = lambda t: t * t
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck, pytest.raises(UnsupportedLeafError, match="anneal_func"):
        ck.checkpoint({"s": scheduler}, step=1)


def test_averaged_model_and_lambdas(tmp_path: Path) -> None:
    class Decay:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self, epoch: int) -> float:
            return self.rate**epoch

    sides: list[dict[str, Any]] = []
    for rate in (0.9, 0.5):
        torch.manual_seed(int(rate * 10))
        model = torch.nn.Linear(2, 2)
        averaged = swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.LambdaLR(optimizer, Decay(rate))
        sides.append({"m": averaged, "o": optimizer, "s": scheduler})
    for _ in range(3):
        sides[0]["o"].step()
        sides[0]["s"].step()
        sides[0]["m"].update_parameters(torch.nn.Linear(2, 2))
    save_and_restore(tmp_path, *sides)
    assert difference(sides[0]["m"].state_dict(), sides[1]["m"].state_dict()) is None
    assert sides[1]["m"].n_averaged.item() == 3 and sides[1]["s"].lr_lambdas[0].rate == 0.9
