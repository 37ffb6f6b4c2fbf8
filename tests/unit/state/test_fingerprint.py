"""Samples of large leaves: every element in time, whatever the leaf's size, and never more than were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.fingerprint import SAMPLES_PER_LEAF, Sampler, full_digest
from deeppart.state.ties import address


def sample_digest(data: Any, turn: int) -> tuple[int, int]:
    sampler = Sampler([0], [data])
    alone = sampler.digests([data], [address(data)], turn)
    assert alone.keys() == {0}
    return sampler.digest([data], [address(data)], turn), alone[0]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 23 * 16, 587 * 3, 4099, 4800])
def test_every_element_is_sampled_in_time(count: int) -> None:
    zeros, marked = torch.zeros(count, dtype=torch.float64), torch.arange(1, count + 1, dtype=torch.float64)
    turns = 3 * (count // SAMPLES_PER_LEAF + 1)
    base = [sample_digest(zeros, turn) for turn in range(turns)]
    unseen = set(range(count))
    for place in range(count) if count < 100 else (0, 1, count // 3, count // 2, count - 17, count - 2, count - 1):
        one = zeros.clone()
        one[place] = marked[place]
        assert any(sample_digest(one, turn) != base[turn] for turn in range(turns)), place
        unseen.discard(place)
    assert len(unseen) < count


@pytest.mark.parametrize("make", [lambda: torch.zeros(300, 7).t(), lambda: np.zeros((40, 50))[:, ::2]])
def test_leaves_that_are_not_flat(make: object) -> None:
    base = make()  # type: ignore[operator]
    other = base.clone() if isinstance(base, torch.Tensor) else base.copy()
    other = other if isinstance(base, torch.Tensor) else np.zeros((40, 50))[:, ::2]
    assert sample_digest(base, 5) == sample_digest(other, 5)
    assert full_digest(base) == full_digest(other)
    other[...] = 1
    assert sample_digest(base, 5) != sample_digest(other, 5)
    assert full_digest(base) != full_digest(other)


def test_both_samples_and_whole_do_not_depend_on_where_the_leaf_lies() -> None:
    data = torch.randn(1000)
    shifted = torch.cat([torch.zeros(3), data])[3:]
    assert sample_digest(data, 2) == sample_digest(shifted, 2)
    assert full_digest(data) == full_digest(shifted)
