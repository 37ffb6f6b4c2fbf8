"""AdaptDL's function over the library's model."""

from __future__ import annotations

import numpy as np
import pytest

from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.goodput import GoodputFunction, PerfParams, _obj_fn, fit_perf_params
from deeppart.plan.goodput import Goodput, GradientNoise, Throughput

PARAMS = PerfParams(0.02, 0.001, 0.05, 0.0003, 0.01, 0.0001, 1.6)
NOISE = (1.0, 30.0)


@pytest.mark.parametrize("size", [(1, 1, 32, 0), (1, 4, 32, 0), (2, 8, 16, 3)])
def test_it_is_the_goodput_of_the_library(size: tuple[int, int, int, int]) -> None:
    mine = GoodputFunction(PARAMS, NOISE, 32)(*size)
    assert mine == pytest.approx(float(Goodput(Throughput(*PARAMS), GradientNoise(*NOISE, 32)).samples_per_s(*size)))


def test_the_best_is_that_of_trying_all() -> None:
    function = GoodputFunction(PARAMS, NOISE, 32)
    best, local, accumulation = function.optimize(1, 4, 512, (4, 64), True)
    tried = [function(1, 4, each, more) for each in range(8, 65) for more in range(2) if 4 * each * (more + 1) <= 512]
    assert best == pytest.approx(function(1, 4, local, accumulation)) and best > 0.99 * max(tried)


def test_a_fit_finds_what_the_times_are_of() -> None:
    nodes, replicas, local = (
        np.array(each) for each in zip(*((n, 2 * n, m) for n in (1, 2, 4) for m in (8, 64)), strict=True)
    )
    alone_s = PARAMS.alpha_c + PARAMS.beta_c * local
    step_s = np.array(
        [float(Throughput(*PARAMS).step_s(n, r, m)) for n, r, m in zip(nodes, replicas, local, strict=True)]
    )
    found = fit_perf_params(nodes, replicas, local, alone_s, step_s)
    data = (nodes, replicas, local, alone_s, step_s)
    assert _obj_fn(found, *data) <= _obj_fn(PARAMS, *data) + 1e-3


@pytest.mark.parametrize("size", [(0, 1), (2, 1)])
def test_impossible_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="no best batch"):
        GoodputFunction(PARAMS, NOISE, 32).optimize(*size)


def test_a_batch_below_the_first_one() -> None:
    with pytest.raises(UsageError, match="expected: at least 32 samples\n  found: 31"):
        GoodputFunction(PARAMS, NOISE, 32)(1, 1, 31, 0)
    with pytest.raises(UsageError, match="no best batch"):
        GoodputFunction(PARAMS, NOISE, 32).optimize(1, 1, 31)
