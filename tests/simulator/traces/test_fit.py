"""From a trace to a machine's failures."""

from __future__ import annotations

import itertools
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.campaign.failures import Size, drawn
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.traces.fit import Assumed, failures_toml, fit, times_between
from deeppart_simulator.traces.read import read_trace
from deeppart_simulator.traces.record import Event, Observation, Trace

from tests.simulator.traces.logs import SACCT, written

DAY = 86400.0


def _drawn(failures: Failures, size: Size, seconds: float, seed: int) -> Trace:
    """What a campaign draws, as a trace."""
    found = itertools.takewhile(lambda each: each.at_s < seconds, drawn(failures, size, np.random.default_rng(seed)))
    events = tuple(Event(each.at_s, each.kind, tuple(map(str, each.nodes))) for each in found)
    names = tuple(str(node) for node in range(size.nodes))
    return Trace("csv", events, Observation(seconds, size.nodes, seconds * size.nodes), names)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("shape", [1.0, 0.7])
def test_what_was_drawn_is_found_again(shape: float) -> None:
    """Many campaigns of known rates: bounds hold in about 95 of 100, and means are not off."""
    true = {"process": 300 * DAY, "node": 60 * DAY, "group": 200 * DAY, "system": 90 * DAY}
    failures = Failures(**true, group_nodes=4, shape=shape)
    held, logs, runs = dict.fromkeys(true, 0), dict.fromkeys(true, 0.0), 120
    shapes = 0
    for seed in range(runs):
        trace = _drawn(failures, Size(64, 8), 2000 * DAY, seed)
        found = fit(trace, Assumed(ranks_per_node=8, group_nodes=4, window_s=0.0))
        for kind, value in true.items():
            one = found.rates[kind]
            held[kind] += one.low_s <= value <= one.high_s
            logs[kind] += math.log(one.mtbf_s / value) / runs
        assert found.shape is not None
        shapes += found.shape.low <= shape <= found.shape.high
    assert all(0.9 <= count / runs <= 1.0 for count in (*held.values(), shapes)), (held, shapes)
    assert sum(held.values()) / runs / 4 >= 0.93
    assert all(abs(bias) < 0.12 for bias in logs.values()), logs


def test_a_real_log_of_jobs(tmp_path: Path) -> None:
    found = fit(read_trace(written(tmp_path, SACCT)))
    counts = {kind: one.events for kind, one in found.rates.items()}
    # Two nodes within a minute of each other are one node here: both jobs had node1.
    assert counts == {"process": 1, "node": 1, "system": 0, "preemption": 1} and found.time_limits == 1
    apart = fit(read_trace(written(tmp_path, SACCT)), Assumed(ranks_per_node=8, window_s=1.0))
    assert apart.rates["node"].events == 2
    assert apart.rates["process"].exposure_s == 8 * apart.rates["node"].exposure_s
    assert any("--ranks-per-node" in note for note in found.notes) and not apart.notes


def test_nothing_happened(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "# seconds = 864000\n# nodes = 10\nat_s,kind,nodes\n"))
    found = fit(trace)
    assert found.rates["node"].low_s == pytest.approx(100 * DAY / -math.log(0.025)) and found.shape is None
    table = tomllib.loads(failures_toml(found, "x"))["failures"]
    assert table == {"process": "never", "node": "never", "system": "never", "shape": 1}


def test_what_was_watched_has_to_be_known(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "at_s,kind,nodes\n86400,node,3\n"))
    with pytest.raises(ValueError, match="--days and --nodes"):
        fit(trace)
    with pytest.raises(ValueError, match="at least 1 days"):
        fit(trace, Assumed(seconds=10.0))
    found = fit(trace, Assumed(seconds=10 * DAY, nodes=50))
    assert found.rates["node"].mtbf_s == 500 * DAY


def test_a_machine_file_takes_it(tmp_path: Path) -> None:
    trace = _drawn(Failures(node=60 * DAY, group=100 * DAY, group_nodes=4, shape=0.6), Size(8, 8), 3000 * DAY, 1)
    found = fit(trace, Assumed(window_s=0.0))
    text = failures_toml(found, 'a "trace"')
    machine = read_machine(str(written(tmp_path, 'base = "frontier"\n' + text, "machine.toml")))
    assert machine.failures.node == pytest.approx(found.rates["node"].mtbf_s, rel=1e-4)
    assert machine.failures.group_nodes == 4 == found.group_nodes
    assert machine.failures.shape == pytest.approx(found.used_shape, rel=1e-3) and machine.failures.shape < 0.75


def test_times_of_nodes_and_of_runs(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT))
    nodes, runs = times_between(trace, "node"), times_between(trace, "process")
    assert list(nodes.failed) == [15.0] and list(nodes.censored) == [92.0]
    assert list(runs.failed) == [1.0] and len(runs.censored) == 9
    assert min(runs.censored) == 1.0  # half a second on two nodes: the job that has just begun
    twice = Trace("csv", (Event(5, "node", ("1",)),) * 3, Observation(5.0, 2, 10.0, resolution_s=60.0), ("1", "2"))
    assert list(times_between(twice, "node").failed) == [30.0, 30.0] and not len(times_between(twice, "node").censored)
