"""Rules that make an optimizer's steps theirs; AdaptDL's tests have their numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.torch.loops import AdaptiveDataLoaderHelper
from deeppart.elastic.adaptdl.torch.scaling_rules import (
    AdamScale,
    AdaScale,
    LEGWScale,
    LinearScale,
    ScalingRuleBase,
    SqrtScale,
)


class Noise:
    """As a GradientNoiseScale after so many micro-batches."""

    raw_sqr_avg, raw_var_avg = np.array([1.0, -1.0]), np.array([2.0, 0.0])
    should_zero_grad = True
    accum_scale, accum_count = 2.0, 2
    progress, resets = 10.0, 0

    def get_progress(self) -> float:
        return self.progress

    def set_progress(self, progress: float) -> None:
        self.progress = progress

    def gain(self, scale: float) -> float:
        return scale / 2

    def reset_accumulation(self, *args: Any, **kwargs: Any) -> None:
        self.resets += 1


def trained(rule: ScalingRuleBase) -> tuple[Any, torch.optim.Optimizer]:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (0.1, 0.2)]
    optimizer = torch.optim.SGD(groups)
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones(1)
    adp = SimpleNamespace(gns=Noise(), require_backward_grad_sync=True)
    rule.initialize(adp, optimizer, patch_optimizer=True)
    return adp, optimizer


RULES = [
    (AdaScale(), [3 / 1.5, 4.0]),
    (AdamScale(), [np.sqrt(3 / 1.5), 2.0]),
    (LinearScale(), [4.0, 4.0]),
    (SqrtScale(), [2.0, 2.0]),
]


@pytest.mark.parametrize(("rule", "factors"), RULES, ids=lambda value: type(value).__name__)
def test_a_step_has_the_scaled_rate_and_leaves_the_rate_as_it_was(rule: ScalingRuleBase, factors: list[float]) -> None:
    adp, optimizer = trained(rule)
    optimizer.step()
    found = [float(group["params"][0].detach()) for group in optimizer.param_groups]
    assert found == pytest.approx([1 - 0.1 * factors[0], 1 - 0.2 * factors[1]])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert adp.gns.progress == 10.0 + 2.0


def test_while_gradients_are_accumulated_nothing_happens() -> None:
    adp, optimizer = trained(LinearScale())
    adp.require_backward_grad_sync = adp.gns.should_zero_grad = False
    optimizer.step()
    optimizer.zero_grad()
    assert float(optimizer.param_groups[0]["params"][0].detach()) == 1.0
    assert (adp.gns.progress, adp.gns.resets) == (10.0, 0)
    adp.gns.should_zero_grad = True
    optimizer.zero_grad()
    assert adp.gns.resets == 1


def test_a_step_that_fails_leaves_the_rate_as_it_was() -> None:
    adp, optimizer = trained(LinearScale())

    def fails() -> float:
        raise OSError("as a closure may")

    with pytest.raises(OSError, match="closure"):
        optimizer.step(fails)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2] and adp.gns.progress == 10.0


def test_a_scheduler_may_be_made_afterwards() -> None:
    _, optimizer = trained(LinearScale())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]


def test_a_rule_of_no_model() -> None:
    with pytest.raises(UsageError, match="belongs to no model"):
        AdaScale().step()
    with pytest.raises(NotImplementedError):
        ScalingRuleBase().scale_lr(1.0)


def test_legw_warms_up_within_a_loop() -> None:
    rule = LEGWScale(base_warmup_epochs=2, data_size=100)
    adp, _ = trained(rule)
    with pytest.raises(UsageError, match="outside of a loop"):
        rule.scale_lr(4.0)
    with AdaptiveDataLoaderHelper(batch_size=10).context():
        assert rule.scale_lr(4.0) == pytest.approx(2 * 10 / 80)
        adp.gns.progress = 80.0
        assert rule.scale_lr(4.0) == 2.0
