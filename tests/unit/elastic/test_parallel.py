"""The module itself, on one rank; trainings on several: tests/elastic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataParallel, LEGWScale, LinearScale
from deeppart.errors import ConfigError
from tests.unit.elastic.settings import Setting, one_rank, setting


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    with one_rank():
        yield


def test_parameters_that_are_trained_later_are_refused() -> None:
    """DistributedDataParallel would not exchange their gradients."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    model[0].requires_grad_(False)
    it = setting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = ElasticDataParallel(model, optimizer, progress=it.progress, name="frozen")
    for (batch,) in it.loader:
        parallel(batch).sum().backward()
        optimizer.step()
        break
    model[0].requires_grad_(True)
    for (batch,) in it.loader:
        parallel(batch).sum().backward()
        with pytest.raises(ConfigError, match="frozen when the model was wrapped"):
            optimizer.step()
        break


def test_a_step_in_the_middle_of_a_step_is_refused() -> None:
    """Ranks would go apart without a word."""
    this = setting(accumulation=1)
    for (batch,) in this.loader:
        this.parallel(batch).sum().backward()
        with pytest.raises(ConfigError, match="while gradients are accumulated"):
            this.optimizer.step()
        break


def test_the_rate_follows_the_batch_and_is_put_back() -> None:
    this = setting(rule=LinearScale())
    rates = []
    this.optimizer.register_step_pre_hook(lambda *_: rates.append(this.optimizer.param_groups[0]["lr"]))
    for place, batch in enumerate(this.loader):
        this.step(batch)
        assert this.optimizer.param_groups[0]["lr"] == 0.1
        if place == 0:
            this.loader.set_batch(8)
    # The last step has 16 - 4 - 8 samples, which is no reason for another rate.
    assert rates == pytest.approx([0.1, 0.2, 0.2])
    assert this.parallel.scale == 2.0 and this.parallel.effective_steps >= 3.0


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_means_over_samples_however_they_are_cut(training: bool) -> None:
    """Four samples in micro-batches of 2, 1 and 1."""
    cut, whole = setting(accumulation=2), setting()
    inputs = torch.randn(16, 3)
    for each in (cut, whole):
        if not training:
            each.parallel.eval()  # models are trained in this mode, too: without dropout
        assert isinstance(each.loader.dataset, TensorDataset)
        each.loader.dataset.tensors = (inputs,)
        for (batch,) in each.loader:
            each.parallel(batch).square().mean().backward()
            if each.loader.ends_step:
                break
    assert torch.allclose(cut.model.weight.grad, whole.model.weight.grad, rtol=1e-5)  # type: ignore[arg-type]


def test_the_estimate_and_the_progress_are_saved() -> None:
    this = setting()
    for batch in this.loader:
        this.step(batch)
    saved = this.progress.state_dict()
    later = setting()
    later.progress.load_state_dict(saved)
    assert later.parallel.effective_steps == this.parallel.effective_steps > 0
    assert later.parallel.noise.by_group() == this.parallel.noise.by_group() and later.parallel.noise.known
    assert set(this.parallel.state()) == {"model", "optimizer", "elastic"}


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_step_that_failed_leaves_no_rate_to_checkpoints(optimizer_first: bool, saves: bool) -> None:
    """One that is made after it has the rate of the training; one that is restored has its own."""
    this = setting(rule=LinearScale())
    saved = this.optimizer.state_dict(), this.progress.state_dict()
    this.loader.set_batch(8)
    this.optimizer.param_groups[0]["lr"] = 0.03  # as a scheduler does

    def fail(*_: Any) -> None:
        raise MemoryError

    failing = this.optimizer.register_step_pre_hook(fail)
    for batch in this.loader:
        with pytest.raises(MemoryError):
            this.step(batch)
        break
    failing.remove()
    assert this.optimizer.param_groups[0]["lr"] == pytest.approx(0.06)
    if saves:
        assert this.optimizer.state_dict()["param_groups"][0]["lr"] == 0.03
    this.optimizer.zero_grad()
    if optimizer_first:
        this.optimizer.load_state_dict(saved[0])
    this.progress.load_state_dict(saved[1])
    if not optimizer_first:
        this.optimizer.load_state_dict(saved[0])
    for batch in this.loader:
        this.step(batch)
        assert this.optimizer.param_groups[0]["lr"] == 0.1
        break


# --- with a GradScaler ------------------------------------------------------------------------------------------------


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
    assert this.parallel.effective_steps == 16.0 and not torch.equal(this.model.weight, weight)
