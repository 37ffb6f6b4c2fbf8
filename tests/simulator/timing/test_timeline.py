"""The bars of a timeline are the checkpoint."""

from __future__ import annotations

import math

import numpy as np
import pytest
from deeppart_simulator.timing.bandwidth_sharing import by_node, finish_times
from deeppart_simulator.timing.stages import Protection, times_of
from deeppart_simulator.timing.timeline import timeline

from tests.simulator.timing.jobs import STATE, job


def test_rows_do_not_touch_each_other() -> None:
    found = finish_times(np.array([[10.0, 0.0], [10.0, 10.0]]), 10.0, 10.0)
    assert found.tolist() == [[1.0, 0.0], [2.0, 2.0]]
    assert by_node(np.arange(5), 2).tolist() == [[0, 1], [2, 3], [4, 0]]


def test_a_timeline_is_the_checkpoint() -> None:
    this = job(compression="tensor", protection=Protection(parity_group=4))
    times = times_of(this, STATE.shares(16, kappa=0))
    bars = timeline(this, times)
    assert {bar.node for bar in bars} == set(range(4))
    done = times.complete()
    assert max(bar.end_s for bar in bars if bar.what == "write") == pytest.approx(done["local"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange copies") == pytest.approx(done["partner"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange parity") == pytest.approx(done["parity"])
    assert max(bar.end_s for bar in bars if bar.what == "flush") == pytest.approx(done["persistent"])
    assert math.isclose(max(bar.end_s for bar in bars if bar.what == "copy"), times.blocked_s)
