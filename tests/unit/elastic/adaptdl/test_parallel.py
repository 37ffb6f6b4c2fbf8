"""A model that trains with any batch, on any number of replicas, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from deeppart.elastic.adaptdl import checkpoint, env
from deeppart.elastic.adaptdl import torch as adl
from deeppart.elastic.adaptdl.torch.scaling_rules import LEGWScale, LinearScale, ScalingRuleBase
from tests.unit.elastic.adaptdl.replicas import elastic_multiprocessing


def data() -> TensorDataset:
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(96, 4, generator=random, dtype=torch.float64)
    return TensorDataset(inputs, inputs @ torch.arange(1.0, 5.0, dtype=torch.float64).reshape(4, 1))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64, affine=False, momentum=0.0)
        self.linear = torch.nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.norm(inputs)
        return self.linear(inputs)  # type: ignore[no-any-return]


def train(changes: dict[int, tuple[int, int]]) -> Any:
    """Two epochs; at a run's (epoch, step) all is saved, and the job goes on elsewhere. Returns what all have found."""
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(data(), batch_size=12, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    # The estimate of noise depends on who measures it; a rate of scale 1 does not.
    parallel = adl.AdaptiveDataParallel(model, optimizer, scheduler, scaling_rule=LinearScale())
    for epoch in adl.remaining_epochs_until(2):
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            (parallel(inputs) - targets).square().mean().backward()
            optimizer.step()
            if changes.get(env.num_restarts()) == (epoch, step):
                checkpoint.save_all_states()
                return None
        scheduler.step()
    return model.linear.weight.detach().flatten().tolist(), scheduler.get_last_lr(), parallel.gns.get_progress()


def test_the_result_of_a_job_that_changes_its_size_is_that_of_one_that_does_not(tmp_path: Path) -> None:
    @elastic_multiprocessing
    def alone() -> None:
        torch.save(train({}), tmp_path / "result")

    @elastic_multiprocessing
    def changing() -> int:
        here = train({0: (0, 3), 1: (1, 1)})
        if here is None:
            return [3, 2][env.num_restarts()]
        weights, rates, progress = torch.load(tmp_path / "result")
        assert np.allclose(here[0], weights, rtol=0, atol=1e-10), (here[0], weights)
        assert here[1] == rates and here[2] == pytest.approx(progress)
        return 0

    alone()
    changing()


class Double(ScalingRuleBase):
    """As a script may have it."""

    def scale_lr(self, scale: float) -> Any:
        assert self.adp.gns.sqr_avg() == self.adp.gns.raw_sqr_avg.sum()
        assert self.adp.gns.var_avg() == self.adp.gns.raw_var_avg.sum()
        return 2 * scale


@pytest.mark.parametrize(("rule", "factors"), [(Double(), [2.0, 2.0]), (LEGWScale(2, 96), [0.0, 1 / 16])])
def test_rules_of_a_script_and_a_scheduler_that_is_made_later(rule: Any, factors: list[float]) -> None:
    @elastic_multiprocessing
    def job() -> None:
        adl.init_process_group("gloo")
        model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = adl.AdaptiveDataParallel(model, optimizer, scaling_rule=rule)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        rates, moved = [1.0, 0.5], []
        loader = adl.AdaptiveDataLoader(data(), batch_size=12)
        for number, (inputs, _) in enumerate(loader):
            before = model.weight.detach().clone()
            parallel.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
            scheduler.step()
            assert model.weight.grad is not None
            moved.append(((before - model.weight.detach()) / model.weight.grad).mean().item() / rates[number])
            if number == 1:
                break
        assert moved == pytest.approx(factors) and optimizer.param_groups[0]["lr"] == 0.25

    job()
