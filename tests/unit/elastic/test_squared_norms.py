"""Squared norms against their definition in double precision, of all elements and of parts."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch

from deeppart.elastic import squared_norms
from deeppart.elastic.parts import WHOLE, Part
from deeppart.elastic.squared_norms import Alike, Scaling, preconditioned_squared_norm, second_moments, squared_norm

ADAM: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-3}
SHAPES = [(), (0,), (1,), (7,), (3, 5), (300, 1001)]


def made(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient and second moments, some of which are 0."""
    draw = torch.Generator().manual_seed(0)
    moments = torch.rand(shape, generator=draw).clamp(min=0.1) - 0.1
    return torch.randn(shape, generator=draw).to(dtype), moments


def defined(gradient: torch.Tensor, moments: torch.Tensor, options: dict[str, Any], steps: int) -> float:
    correction = 1 - options["betas"][1] ** steps if "betas" in options else 1.0
    return float((gradient.double() / ((moments.double() / correction).sqrt() + options["eps"])).square().sum())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [ADAM, {"eps": 1e-3}], ids=["Adam", "RMSprop"])
def test_as_adam_scales_gradients(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    gradient, moments = made(shape)
    found = preconditioned_squared_norm(gradient, moments, options, 7)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(defined(gradient, moments, options, 7), rel=1e-4)
    assert float(preconditioned_squared_norm(gradient, moments, options, 4)) == float(squared_norm(gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_as_they_are(dtype: torch.dtype) -> None:
    gradient, moments = made((300, 1001), dtype)
    assert float(squared_norm(gradient)) == pytest.approx(float(gradient.double().square().sum()), rel=1e-4)
    scaled = preconditioned_squared_norm(gradient, moments, ADAM, 7)
    assert float(scaled) == pytest.approx(defined(gradient, moments, ADAM, 7), rel=1e-4)


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_norms_of_parts_are_together_that_of_all(shape: tuple[int, ...], parts: int) -> None:
    gradient, moments = made(shape)
    each = [Part(number, parts) for number in range(parts)]
    plain = sum(float(squared_norm(gradient, part)) for part in each)
    scaled = sum(float(preconditioned_squared_norm(gradient, moments, ADAM, 7, part)) for part in each)
    assert plain == pytest.approx(float(squared_norm(gradient, WHOLE)), rel=1e-4)
    assert scaled == pytest.approx(defined(gradient, moments, ADAM, 7), rel=1e-4)


def test_gradients_that_are_not_contiguous() -> None:
    gradient, moments = made((300, 1001))
    turned = gradient.t().contiguous().t()
    whole = float(preconditioned_squared_norm(gradient, moments, ADAM, 7))
    assert not turned.is_contiguous()
    assert float(preconditioned_squared_norm(turned, moments, ADAM, 7)) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_complex_numbers_are_two_real_ones_as_adam_takes_them(parts: int) -> None:
    gradient, moments = (torch.view_as_complex(each) for each in made((500, 2)))
    each = [Part(number, parts) for number in range(parts)]
    plain = sum(float(squared_norm(gradient.conj(), part)) for part in each)
    scaled = sum(float(preconditioned_squared_norm(gradient, moments, ADAM, 7, part)) for part in each)
    real = torch.view_as_real(gradient), torch.view_as_real(moments)
    assert plain == pytest.approx(float(squared_norm(real[0])), rel=1e-5)
    assert scaled == pytest.approx(defined(*real, ADAM, 7), rel=1e-4)


@pytest.mark.parametrize("keeps", [False, True])
def test_what_gradients_are_divided_by_is_kept_if_it_is_to_be(keeps: bool) -> None:
    gradient, moments = made((300, 101))
    alike = Alike(Scaling.of(ADAM, 7), 3.0, keeps=keeps)
    for number in range(2):
        alike.add(number, Part(number, 2), moments)
    first = defined(gradient, moments, ADAM, 7)
    assert float(alike.squared_norm([gradient, gradient])) == pytest.approx(3 * first, rel=1e-4)
    assert float(alike.squared_norm([2 * gradient, 2 * gradient])) == pytest.approx(12 * first, rel=1e-4)
    moments.mul_(4)
    then = first if keeps else defined(gradient, moments, ADAM, 7)
    assert float(alike.squared_norm([gradient, gradient])) == pytest.approx(3 * then, rel=1e-4)


@pytest.mark.parametrize("sizes", [[5, 90, 5], [40, 40, 40, 40], [1000], [99, 3, 250], [], [0, 3]])
@pytest.mark.parametrize("parts", [1, 2])
def test_vectors_are_few_but_no_longer_than_what_is_worked_on_at_a_time(sizes: list[int], parts: int) -> None:
    tensors = [torch.arange(size * 32.0) for size in sizes]
    with patch.object(squared_norms, "_AT_A_TIME", 100 * 32):
        vectors = list(squared_norms._gathered((each, Part(0, parts)) for each in tensors))
    lengths = [len(each) // 32 for each in vectors]
    expected = sum(float(squared_norm(each.double(), Part(0, parts))) for each in tensors)
    assert sum(float(each.double().square().sum()) for each in vectors) == pytest.approx(expected, rel=1e-12)
    assert all(0 < each <= 100 for each in lengths)
    assert all(one + other > 100 for one, other in pairwise(lengths)), lengths


@pytest.mark.parametrize(
    ("optimizer", "options", "name"),
    [
        (torch.optim.Adam, {}, "exp_avg_sq"),
        (torch.optim.AdamW, {"amsgrad": True}, "max_exp_avg_sq"),
        (torch.optim.RMSprop, {}, "square_avg"),
        (torch.optim.SGD, {}, None),
    ],
)
def test_the_moments_that_an_optimizer_divides_by(optimizer: Any, options: dict[str, Any], name: str | None) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    made_one = optimizer([parameter], lr=0.1, **options)
    parameter.grad = torch.ones(3)
    made_one.step()
    state = made_one.state[parameter]
    assert second_moments(state) is (None if name is None else state[name])
    assert second_moments({}) is None and math.isfinite(float(squared_norm(parameter.grad)))
