"""A model that trains with any batch, on any number of replicas, and comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from deeppart.elastic.adaptdl import torch as adl
from deeppart.elastic.adaptdl.torch.scaling_rules import LEGWScale, ScalingRuleBase


def data() -> TensorDataset:
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(96, 4, generator=random, dtype=torch.float64)
    return TensorDataset(inputs, inputs @ torch.arange(1.0, 5.0, dtype=torch.float64).reshape(4, 1))


class Double(ScalingRuleBase):
    """As a script may have it."""

    def scale_lr(self, scale: float) -> Any:
        assert self.adp.gns.sqr_avg() == self.adp.gns.raw_sqr_avg.sum()
        assert self.adp.gns.var_avg() == self.adp.gns.raw_var_avg.sum()
        return 2 * scale


@pytest.mark.parametrize(("rule", "factors"), [(Double(), [2.0, 2.0]), (LEGWScale(2, 96), [0.0, 1 / 16])])
def test_rules_of_a_script_and_a_scheduler_that_is_made_later(rule: Any, factors: list[float]) -> None:
    adl.init_process_group("gloo")
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parallel = adl.AdaptiveDataParallel(model, optimizer, scaling_rule=rule)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rates, moved = [1.0, 0.5], []
    for number, (inputs, _) in enumerate(adl.AdaptiveDataLoader(data(), batch_size=12)):
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
    assert parallel.gns.get_progress() == pytest.approx(2.0)
