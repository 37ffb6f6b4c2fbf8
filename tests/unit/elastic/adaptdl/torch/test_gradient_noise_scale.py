"""The estimate is that of the formulas, from gradients that are had one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.elastic.adaptdl.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from deeppart.elastic.noise import NoiseScale, Norms, of_two_steps


def made(optimizer: torch.optim.Optimizer, kind: Any = GradientNoiseScale, **options: Any) -> tuple[Any, Any]:
    adp = SimpleNamespace(require_backward_grad_sync=True)
    return kind(adp, optimizer, num_replicas=1, **{"accum_scale": 1.0} | options), adp


def backward(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    (parameter * gradient).sum().backward()


def test_micro_batches_of_a_step_are_parts_of_it() -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(50)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1)
    noise, adp = made(optimizer)
    expected = NoiseScale(2)
    for _ in range(5):
        noise.reset_accumulation()
        gradients = [[torch.randn(each.shape) + 1 for each in parameters] for _ in range(3)]
        for number, each in enumerate(gradients):
            adp.require_backward_grad_sync = number == 2
            torch.autograd.backward([(p * g).sum() for p, g in zip(parameters, each, strict=True)])
        means = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
        assert all(
            torch.allclose(p.grad, mean) for p, mean in zip(parameters, means, strict=True) if p.grad is not None
        )
        of_parts = tuple(float(np.mean([g.square().sum() for g in each])) for each in zip(*gradients, strict=True))
        expected.update(Norms(of_parts, tuple(float(mean.square().sum()) for mean in means), 3, 3.0))
    assert noise.sqr_avg() == pytest.approx(expected.squared_gradient(), rel=1e-5)
    assert noise.var_avg() == pytest.approx(expected.variance(), rel=1e-5)
    assert noise.gain(4.0) == pytest.approx(expected.gain(4.0), rel=1e-5)


def test_one_micro_batch_is_compared_with_the_step_before() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    noise, _ = made(torch.optim.SGD([parameter], lr=0.1), accum_scale=2.0)
    gradients = [torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 2.0, 1.0, 0.0])]
    for each in gradients:
        noise.reset_accumulation()
        backward(parameter, each)
    norms = [float(each.square().sum()) for each in gradients]
    both = float(((gradients[0] + gradients[1]) / 2).square().sum())
    expected = of_two_steps([norms[0]], [norms[1]], [both], 2.0)
    assert noise.raw_sqr_avg == pytest.approx(expected.squared_gradient())
    assert noise.raw_var_avg == pytest.approx(expected.variance())


def test_averages_with_bias_are_given_up_for_those_without() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    noise, adp = made(torch.optim.SGD([parameter], lr=0.1))
    for _ in range(3):
        noise.reset_accumulation()
        backward(parameter, torch.tensor([100.0, 0.0]))
    noise.reset_accumulation()
    for number in range(2):
        adp.require_backward_grad_sync = number == 1
        backward(parameter, torch.tensor([1.0, float(number)]))
    mean, parts = 1.25, 1.5
    assert noise.sqr_avg() == pytest.approx(2 * mean - parts) and noise.var_avg() == pytest.approx((parts - mean) * 2)


def test_gradients_that_are_not_finite_say_nothing() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    noise, _ = made(torch.optim.SGD([parameter], lr=0.1))
    for value in (1.0, 2.0):
        noise.reset_accumulation()
        backward(parameter, torch.full((2,), value))
    before = noise.sqr_avg(), noise.var_avg()
    noise.reset_accumulation()
    with pytest.warns(UserWarning, match="not finite"):
        backward(parameter, torch.tensor([float("nan"), 1.0]))
    assert (noise.sqr_avg(), noise.var_avg()) == before


def test_the_scale_of_a_loss_changes_nothing() -> None:
    found = []
    for scale in (1.0, 1024.0):
        parameter = torch.nn.Parameter(torch.zeros(3))
        scaler = SimpleNamespace(get_scale=lambda scale=scale: scale)
        noise, adp = made(torch.optim.SGD([parameter], lr=0.1), mp_scaler=scaler)
        for number in range(2):
            adp.require_backward_grad_sync = number == 1
            backward(parameter, scale * torch.tensor([1.0, 2.0, float(number)]))
        found.append((noise.sqr_avg(), noise.var_avg()))
    assert found[0] == pytest.approx(found[1])


def test_adam_divides_by_the_root_of_its_second_moments() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([parameter], lr=1e-9, betas=(0.9, 0.5))
    noise, adp = made(optimizer, AdamGradientNoiseScale)
    for _ in range(30):
        noise.reset_accumulation()
        backward(parameter, torch.tensor([100.0, 0.01]))
        optimizer.step()
    noise._state.update(sqr_sum=0.0, var_sum=0.0, weight=0.0)
    noise.reset_accumulation()
    for _ in range(2):
        adp.require_backward_grad_sync = _ == 1
        backward(parameter, torch.tensor([100.0, 0.01]))
    assert noise.sqr_avg() == pytest.approx(2.0, rel=1e-3)  # each element is worth as much: (g / |g|)^2


def test_a_new_scale_forgets_what_was_accumulated() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    noise, adp = made(torch.optim.SGD([parameter], lr=0.1))
    adp.require_backward_grad_sync = False
    backward(parameter, torch.ones(2))
    noise.set_accum_scale(1.0 + 1e-9)
    assert noise.accum_count == 1 and not noise.should_zero_grad
    noise.set_accum_scale(2.0)
    assert noise.accum_count == 0 and noise.accum_scale == 2.0
