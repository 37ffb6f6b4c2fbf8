"""From a trace to a machine's failures."""

from __future__ import annotations

import itertools
import math
import tomllib
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from deeppart_simulator.campaign.failures import Size, drawn
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.traces.fit import (
    Assumed,
    Shape,
    Times,
    failures_toml,
    fit,
    fit_shape,
    merged,
    rate,
    times_between,
    together,
)
from deeppart_simulator.traces.read import read_trace
from deeppart_simulator.traces.record import Event, Observation, Trace
from scipy import stats

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


def _trace(*events: Event, nodes: int = 100, seconds: float = 1e6) -> Trace:
    names = tuple(f"n{number}" for number in range(nodes))
    return Trace("csv", events, Observation(seconds, nodes, seconds * nodes), names)


def _node(at_s: float, *names: str) -> Event:
    return Event(at_s, "node", names)


def test_within_the_window_and_not() -> None:
    events = (_node(0, "n1"), _node(30, "n2"), _node(61, "n3"), _node(200, "n4"))
    assert merged(_trace(*events), 60).events == (
        Event(0, "group", ("n1", "n2")), Event(61, "node", ("n3",)), Event(200, "node", ("n4",)),
    )  # fmt: skip
    assert [event.kind for event in merged(_trace(*events), 61).events] == ["group", "node"]
    assert merged(_trace(*events), 0).events == events


def test_jobs_that_share_a_node_lost_that_one() -> None:
    both = merged(_trace(_node(5, "n1", "n2", "n3"), _node(5, "n3", "n4")), 0)
    assert both.events == (_node(5, "n3"),)
    apart = merged(_trace(_node(5, "n1", "n2"), _node(5, "n3", "n4")), 0)
    assert apart.events == (Event(5, "group", ("n1", "n3")),)
    again = merged(_trace(_node(5, "n1"), _node(6, "n1")), 10)
    assert again.events == (_node(5, "n1"),)


def test_more_than_half_are_the_system() -> None:
    events = [_node(0.0, f"n{number}") for number in range(6)]
    assert merged(_trace(*events, nodes=11), 0).events[0].kind == "system"
    assert merged(_trace(*events, nodes=12), 0).events[0].kind == "group"


def test_other_kinds_stay_as_they_are() -> None:
    others = (Event(0, "process", ("n1",)), Event(1, "preemption", ("n2",)), Event(2, "group", ("n1", "n2")))
    assert merged(_trace(*others), 60).events == others
    assert together(_trace(*others), 60).failures == 0


def test_chance_is_not_taken_for_correlation() -> None:
    """Independent failures: a p-value below 0.05 comes in at most about one trace in twenty."""
    random, small = np.random.default_rng(5), 0
    for _ in range(200):
        at = np.sort(random.uniform(0, 1e6, size=300))
        found = together(_trace(*(_node(float(t), f"n{random.integers(1000)}") for t in at), nodes=1000), 60)
        assert found.by_chance == pytest.approx(5.35, abs=0.01)
        small += found.p_value < 0.05
    assert small <= 20


def test_groups_are_found() -> None:
    events = [_node(1e4 * k + s, f"n{(4 * k + s) % 100}") for k in range(20) for s in range(4)]
    found = together(_trace(*events), 60)
    assert (found.groups, found.sizes, found.typical, found.failures) == (20, {4: 20}, 4, 80)
    assert found.correlated and found.p_value < 1e-10
    alone = together(_trace(_node(1, "n1")), 60)
    assert (alone.groups, alone.typical, alone.correlated, alone.p_value) == (0, 0, False, 1.0)


def test_an_outage_of_many_nodes_takes_no_time_to_speak_of() -> None:
    """50,000 failures at once; to compare each with all before it took more than five minutes."""
    events = [_node(5.0, f"n{number}") for number in range(50_000)]
    began = process_time()
    (found,) = merged(_trace(*events, nodes=200_000), 60).events
    assert found.kind == "group" and len(found.nodes) == 50_000 and process_time() - began < 5


def test_jobs_of_a_chain_that_share_nodes_are_told_apart_as_they_come() -> None:
    """The first two share b; the third shares a with the first one alone, which was left out: it is another loss."""
    chain = merged(_trace(_node(5, "a", "b"), _node(5, "b", "c"), _node(5, "c", "a")), 0)
    assert chain.events == (Event(5, "group", ("b", "c")),)


@pytest.mark.parametrize("mean", [0.5, 3.0, 10.0, 40.0, 150.0])
def test_bounds_hold_as_often_as_they_say(mean: float) -> None:
    """Added up over all counts: 95 % at least, and not much more where counts are not small."""
    true_s = 1000.0 / mean
    covered = 0.0
    for count in range(int(mean + 12 * math.sqrt(mean) + 20)):
        found = rate(count, 1000.0)
        covered += float(stats.poisson.pmf(count, mean)) * (found.low_s <= true_s <= found.high_s)
    assert 0.95 <= covered <= (1.0 if mean < 10 else 0.98 if mean < 40 else 0.97)


def test_they_are_those_of_the_chi_square_distribution() -> None:
    found = rate(7, 350.0)
    assert found.mtbf_s == 50.0
    assert found.high_s == pytest.approx(2 * 350 / stats.chi2.ppf(0.025, 14), rel=1e-9)
    assert found.low_s == pytest.approx(2 * 350 / stats.chi2.ppf(0.975, 16), rel=1e-9)


def test_no_failure_is_a_bound_and_one_is_a_wide_one() -> None:
    none, one = rate(0, 100.0), rate(1, 100.0)
    assert math.isinf(none.mtbf_s) and math.isinf(none.high_s)
    assert none.low_s == pytest.approx(100 / -math.log(0.025))  # exp(-T / m) = 2.5 %
    assert one.mtbf_s == 100 and one.low_s < 25 and one.high_s > 3000


def test_bursts_make_bounds_wider() -> None:
    """Counts of a renewal process with Weibull gaps: Poisson's bounds would be too narrow."""
    shape, random = 0.7, np.random.default_rng(2)
    scale = 1 / math.gamma(1 + 1 / shape)
    dispersion = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1
    gaps = scale * random.weibull(shape, size=(1500, 260))
    counts = (np.cumsum(gaps, axis=1) < 100.0).sum(axis=1)
    wide = [rate(int(count), 100.0, dispersion) for count in counts]
    narrow = [rate(int(count), 100.0) for count in counts]
    held, missed = (np.mean([each.low_s <= 1.0 <= each.high_s for each in those]) for those in (wide, narrow))
    assert 0.93 <= held <= 0.97 and missed < 0.9


NOTHING = np.empty(0)


@pytest.mark.parametrize("censored", [0, 30])
@pytest.mark.parametrize("shape", [0.5, 0.8, 1.0, 2.5])
def test_with_many_failures_the_shape_is_the_one_that_scipy_finds(shape: float, censored: int) -> None:
    """Which takes the most likely scale: the more failures, the less it matters."""
    random = np.random.default_rng(7)
    failed, left = 5.0 * random.weibull(shape, 2000), 2.0 * random.random(censored) + 0.1
    data = stats.CensoredData(uncensored=failed, right=left)
    expected, _, _ = stats.weibull_min.fit(data, floc=0)
    found = fit_shape([Times(failed, left)])
    assert found is not None and found.shape == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("classes", "each"), [(1, 4), (1, 8), (4, 3)])
def test_few_failures_do_not_look_like_more(classes: int, each: int) -> None:
    """With the most likely scales 89 to 91 % of the bounds held, and the shape was a fifth too large and more."""
    random, found = np.random.default_rng(5), []
    for _ in range(400):
        one = fit_shape([Times(1e3 * random.weibull(0.7, each), NOTHING) for _ in range(classes)])
        assert one is not None
        found.append(one)
    assert 0.92 <= np.mean([one.low <= 0.7 <= one.high for one in found]) <= 0.975
    assert np.median([one.shape for one in found]) == pytest.approx(0.7, rel=0.06)


def test_the_shape_is_that_of_the_likelihood_with_the_scale_integrated_out() -> None:
    """By sums over the logarithm of the scale, of what scipy has as density and as the chance to last longer."""
    failed, left = np.array([0.3, 1.0, 4.0, 0.2]), np.array([2.5])
    shapes, scales = np.arange(0.15, 2.5, 0.005), np.exp(np.linspace(-30, 30, 3001))
    likelihoods = []
    for shape in shapes:
        logs = stats.weibull_min.logpdf(failed[:, None], shape, scale=scales).sum(0)
        logs += stats.weibull_min.logsf(left[:, None], shape, scale=scales).sum(0)
        likelihoods.append(np.exp(logs).sum())
    found = fit_shape([Times(failed, left)])
    assert found is not None and found.shape == pytest.approx(shapes[int(np.argmax(likelihoods))], abs=0.006)
    inside = shapes[np.log(likelihoods) > np.log(max(likelihoods)) - stats.chi2.ppf(0.95, 1) / 2]
    assert (found.low, found.high) == pytest.approx((inside[0], inside[-1]), abs=0.006)


@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5])
def test_bounds_hold_as_often_as_they_say_of_weibull(shape: float) -> None:
    """Gaps until a fixed time, the last one censored, as a trace has them; 93 to 97 of 100, and little bias."""
    random, found = np.random.default_rng(11), []
    for _ in range(400):
        times = np.cumsum(random.weibull(shape, 200))
        until = 70 * math.gamma(1 + 1 / shape)
        inside = times[times < until]
        fitted = fit_shape([Times(np.diff(inside), np.array([until - inside[-1]]))])
        assert fitted is not None
        found.append(fitted)
    covered = np.mean([each.low <= shape <= each.high for each in found])
    assert 0.93 <= covered <= 0.975, covered
    assert np.mean([each.shape for each in found]) == pytest.approx(shape, rel=0.04)
    refused = np.mean([not each.exponential for each in found])
    assert refused <= 0.075 if shape == 1.0 else refused > 0.8


def test_classes_share_a_shape_and_not_a_scale() -> None:
    random = np.random.default_rng(3)
    few, many = 1e-3 * random.weibull(0.7, 50), 1e6 * random.weibull(0.7, 400)
    together = fit_shape([Times(few, NOTHING), Times(many, NOTHING), Times(NOTHING, np.array([5.0]))])
    alone, mixed = fit_shape([Times(many, NOTHING)]), fit_shape([Times(np.concatenate([few, many]), NOTHING)])
    assert together is not None and alone is not None and mixed is not None
    assert together.low < 0.7 < together.high and together.high - together.low < alone.high - alone.low
    assert together.failures == 450 and mixed.shape < 0.4


def test_the_unit_of_time_does_not_matter() -> None:
    times = np.random.default_rng(4).weibull(1.3, 40)
    one, other = (fit_shape([Times(factor * times, np.array([factor]))]) for factor in (1e-9, 1e12))
    assert one is not None and other is not None
    assert (one.shape, one.low, one.high) == pytest.approx((other.shape, other.low, other.high), rel=1e-6)


def test_ties_and_extremes() -> None:
    same = fit_shape([Times(np.full(20, 7.0), NOTHING)])
    assert same is not None and same.high == 50.0  # as regular as can be: no upper bound but the search's
    apart = fit_shape([Times(np.array([1e-6, 1.0, 1e6, 1e12]), NOTHING)])
    assert apart is not None and apart.shape < 0.2


def test_the_spread_of_the_times() -> None:
    assert Shape(1.0, 1.0, 1.0, 1.0, 9).dispersion == pytest.approx(1.0)
    drawn = np.random.default_rng(1).weibull(0.7, 400_000)
    assert Shape(0.7, 0, 0, 0, 9).dispersion == pytest.approx(np.var(drawn) / np.mean(drawn) ** 2, rel=0.03)
