"""Transfers that share a bandwidth, against a simulation of it."""

from __future__ import annotations

import numpy as np
import pytest
from deeppart_simulator.timing.stages import finish_times
from hypothesis import given
from hypothesis import strategies as st

# --- sharing ----------------------------------------------------------------------------------------------------------


def _simulated(amounts: list[float], each: float, together: float) -> list[float]:
    """The same by tiny steps of what is left."""
    left, done, now = list(amounts), [0.0] * len(amounts), 0.0
    while any(rest > 0 for rest in left):
        active = [place for place, rest in enumerate(left) if rest > 0]
        rate = min(each, together / len(active))
        step = min(left[place] for place in active) / rate
        now += step
        for place in active:
            left[place] = left[place] - rate * step if left[place] > rate * step * (1 + 1e-12) else 0.0
            if not left[place]:
                done[place] = now
    return done


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1, 1e6)), min_size=1, max_size=6),
    st.floats(1, 1e4),
    st.floats(1, 1e4),
)
def test_shared_bandwidth_is_what_a_simulation_of_it_gives(amounts: list[float], each: float, together: float) -> None:
    found = finish_times(np.array([amounts]), each, together)[0]
    assert found == pytest.approx(_simulated(amounts, each, together), rel=1e-6)
