"""The module itself, on one rank; trainings on several: tests/elastic."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from deeppart.elastic import AdamScale, AdaScale, ElasticDataLoader, ElasticDataParallel, LinearScale, Progress
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Alone


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass
class Setting:
    progress: Progress
    loader: ElasticDataLoader
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    parallel: ElasticDataParallel

    def step(self, batch: Any) -> None:
        self.parallel(batch[0]).square().mean().backward()
        if self.loader.ends_step:
            self.optimizer.step()
            self.optimizer.zero_grad()


def setting(optimizer: Any = torch.optim.SGD, *, accumulation: int = 0, batch: int = 4, **options: Any) -> Setting:
    torch.manual_seed(0)
    progress, model = Progress(), torch.nn.Linear(3, 2)
    made = optimizer(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 3))
    loader = ElasticDataLoader(data, batch, accumulation=accumulation, progress=progress, ranks=Alone())
    return Setting(progress, loader, model, made, ElasticDataParallel(model, made, progress=progress, **options))


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [(torch.optim.SGD, AdaScale), (torch.optim.Adam, AdamScale), (torch.optim.AdamW, AdamScale)],
)
def test_the_rule_that_suits_the_optimizer(optimizer: Any, kind: type) -> None:
    assert type(setting(optimizer).parallel.rule) is kind
    assert type(setting(optimizer, rule=LinearScale()).parallel.rule) is LinearScale


def test_groups_of_parameters_that_come_later_are_refused() -> None:
    it = setting()
    with pytest.raises(ConfigError, match="groups of parameters"):
        for batch in it.loader:
            it.step(batch)
            it.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


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
    assert this.parallel.scale == 2.0 and this.parallel.worth >= 3.0


def test_gradients_are_means_over_samples_however_they_are_cut() -> None:
    """Four samples in micro-batches of 2, 1 and 1."""
    cut, whole = setting(accumulation=2), setting()
    inputs = torch.randn(16, 3)
    for each in (cut, whole):
        assert isinstance(each.loader.dataset, TensorDataset)
        each.loader.dataset.tensors = (inputs,)
        for (batch,) in each.loader:
            each.parallel(batch).square().mean().backward()
            if each.loader.ends_step:
                break
    assert torch.allclose(cut.model.weight.grad, whole.model.weight.grad, rtol=1e-5)  # type: ignore[arg-type]


def test_outside_of_a_loop_it_is_distributed_data_parallel() -> None:
    this = setting(rule=LinearScale())
    this.parallel(torch.ones(2, 3)).sum().backward()
    this.optimizer.step()
    assert this.parallel.worth == 0.0 and not this.parallel.noise.known


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_model_that_nobody_has_is_freed(optimizer: Any) -> None:
    """As with DistributedDataParallel: what is in C++, out of the garbage collector's sight, must not lead to it."""
    it = setting(optimizer)
    for batch in it.loader:
        it.step(batch)
    weight = weakref.ref(it.model.weight)
    del it, batch
    gc.collect()
    assert weight() is None


def test_outputs_that_hold_no_tensors_are_named() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)

        def forward(self, batch: torch.Tensor) -> Any:
            return _Box(self.inner(batch))

    this = setting(accumulation=1)
    odd = Odd()
    parallel = ElasticDataParallel(odd, torch.optim.SGD(odd.parameters(), lr=0.1), progress=this.progress, name="odd")
    for (batch,) in this.loader:
        with pytest.raises(ConfigError, match="cannot be weighted") as caught:
            parallel(batch)
        assert "_Box" in str(caught.value)
        break


def test_the_estimate_and_the_progress_are_saved() -> None:
    this = setting()
    for batch in this.loader:
        this.step(batch)
    saved = this.progress.state_dict()
    later = setting()
    later.progress.load_state_dict(saved)
    assert later.parallel.worth == this.parallel.worth > 0
    assert later.parallel.noise.by_group() == this.parallel.noise.by_group() and later.parallel.noise.known
    assert set(this.parallel.state()) == {"model", "optimizer", "elastic"}


class _Box:
    def __init__(self, inside: torch.Tensor) -> None:
        self.inside = inside
