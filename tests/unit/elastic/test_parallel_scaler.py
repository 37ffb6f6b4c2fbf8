"""Losses that a GradScaler multiplies: the same noise, and steps that are not made leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from deeppart.elastic import LEGWScale
from tests.unit.elastic.settings import Setting, one_rank, setting


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    with one_rank():
        yield


def train(this: Setting, scaler: Any, epochs: int = 3, factor: Callable[[int], float] = lambda step: 1.0) -> None:
    """Losses are multiplied by ``factor(step)``, too."""
    step = 0
    for _ in range(epochs):
        for (batch,) in this.loader:
            loss = this.parallel(batch).square().mean() * factor(step)
            scaler.scale(loss).backward()
            scaler.step(this.optimizer)
            scaler.update()
            this.optimizer.zero_grad()
            step += 1


def test_the_noise_is_that_without_it_when_the_scale_grows_at_each_step() -> None:
    growing = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)
    with_scale, without = setting(scaler=growing), setting()
    train(with_scale, growing)
    train(without, torch.amp.GradScaler("cpu", enabled=False))
    assert growing.get_scale() == 2.0**13
    assert torch.allclose(with_scale.model.weight, without.model.weight)
    found = [each.progress.state_dict()["members"]["parallel-0"] for each in (with_scale, without)]
    assert found[0]["worth"] == pytest.approx(found[1]["worth"]) and found[1]["noise"]["weight"] > 0
    for name in ("squared", "variance"):
        assert found[0]["noise"][name] == pytest.approx(found[1]["noise"][name], rel=1e-4), name


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.Adam, partial(torch.optim.SGD, fused=True), partial(torch.optim.Adam, fused=True)],
    ids=["SGD", "Adam", "fused SGD", "fused Adam"],
)
def test_a_step_that_is_not_made_counts_for_nothing(optimizer: Any) -> None:
    """A fused optimizer is called, and finds out by itself that gradients are infinite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    this = setting(optimizer, scaler=scaler, rule=LEGWScale(1, 100))
    train(this, scaler)
    before, rate = this.progress.state_dict()["members"]["parallel-0"], this.optimizer.param_groups[0]["lr"]
    weight = this.model.weight.detach().clone()
    assert before["worth"] == 12.0
    train(this, scaler, 1, factor=lambda step: float("inf"))
    after = this.progress.state_dict()["members"]["parallel-0"]
    assert after == before and this.optimizer.param_groups[0]["lr"] == rate
    assert torch.equal(this.model.weight, weight) and scaler.get_scale() == 4.0 / 16
    train(this, scaler, 1)
    assert this.parallel.worth == 16.0 and not torch.equal(this.model.weight, weight)
