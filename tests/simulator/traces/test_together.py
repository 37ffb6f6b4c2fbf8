"""Nodes that fail together."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from deeppart_simulator.traces.fit import merged, together
from deeppart_simulator.traces.record import Event, Observation, Trace


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
