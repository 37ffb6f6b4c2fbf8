"""From a trace to a machine's failures."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.campaign.failures import Size, drawn
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.traces.fit import failures_toml, fit, rate
from deeppart_simulator.traces.read import read_trace
from deeppart_simulator.traces.record import Event, Observation, Trace
from scipy import stats

from tests.simulator.traces.logs import SACCT, written

DAY = 86400.0


def test_what_was_drawn_is_found_again(tmp_path: Path) -> None:
    """Many campaigns of known rates: bounds hold in about 95 of 100, and a machine file takes what was found."""
    true = {"process": 300 * DAY, "node": 60 * DAY, "group": 200 * DAY, "system": 90 * DAY}
    failures, held, runs = Failures(**true, group_nodes=4), dict.fromkeys(true, 0), 60
    for seed in range(runs):
        random, end_s = np.random.default_rng(seed), 2000 * DAY
        events = tuple(
            Event(each.at_s, each.kind, tuple(map(str, each.nodes)))
            for each in itertools.takewhile(lambda each: each.at_s < 2000 * DAY, drawn(failures, Size(64, 8), random))
        )
        names = tuple(str(node) for node in range(8))
        found = fit(Trace("csv", events, Observation(end_s, 8, 8 * end_s), names), ranks_per_node=8)
        for kind, value in true.items():
            held[kind] += found.rates[kind].low_s <= value <= found.rates[kind].high_s
    assert all(count / runs >= 0.85 for count in held.values()), held
    text = 'base = "frontier"\n' + failures_toml(found, 'a "trace"')
    machine = read_machine(str(written(tmp_path, text, "machine.toml")))
    assert machine.failures.node == pytest.approx(found.rates["node"].mtbf_s, rel=1e-4)
    assert machine.failures.group_nodes == 4 == found.group_nodes


def test_a_real_log_of_jobs(tmp_path: Path) -> None:
    found = fit(read_trace(written(tmp_path, SACCT)))
    counts = {kind: one.events for kind, one in found.rates.items()}
    # Two nodes within a minute of each other are one node here: both jobs had node1.
    assert counts == {"process": 1, "node": 1, "system": 0, "preemption": 1} and found.time_limits == 1
    known = fit(read_trace(written(tmp_path, SACCT)), 8)
    assert known.rates["process"].exposure_s == 8 * known.rates["node"].exposure_s
    assert any("--ranks-per-node" in note for note in found.notes) and not known.notes


@pytest.mark.parametrize("mean", [0.5, 3.0, 10.0, 40.0, 150.0])
def test_bounds_hold_as_often_as_they_say(mean: float) -> None:
    """Added up over all counts: 95 % at least, and not much more where counts are not small."""
    true_s = 1000.0 / mean
    covered = 0.0
    for count in range(int(mean + 12 * math.sqrt(mean) + 20)):
        found = rate(count, 1000.0)
        covered += float(stats.poisson.pmf(count, mean)) * (found.low_s <= true_s <= found.high_s)
    assert 0.95 <= covered <= (1.0 if mean < 10 else 0.98 if mean < 40 else 0.97)
