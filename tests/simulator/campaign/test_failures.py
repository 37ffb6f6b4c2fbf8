"""Failures: drawn at their rate, or read from a trace."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.campaign.failures import Failure, Size, drawn, rates_per_s, read_trace
from deeppart_simulator.machine.record import Failures

from deeppart.errors import ConfigError
from tests.simulator.campaign.jobs import DAY

# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_failures_come_at_their_rate(shape: float) -> None:
    failures = Failures(process=40 * DAY, node=10 * DAY, group=30 * DAY, group_nodes=4, system=20 * DAY, shape=shape)
    size = Size(ranks=16, nodes=8)
    wall = 20_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(failures, size, np.random.default_rng(3))))
    for kind, rate in rates_per_s(failures, size).items():
        mine = [f for f in found if f.kind == kind]
        assert len(mine) == pytest.approx(rate * wall, rel=0.12), kind
    assert [f.at_s for f in found] == sorted(f.at_s for f in found)
    assert {f.nodes for f in found if f.kind == "group"} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert {f.nodes for f in found if f.kind == "node"} == {(n,) for n in range(8)}
    assert {f.nodes for f in found if f.kind == "system"} == {tuple(range(8))}


def test_no_failures_at_all() -> None:
    assert list(drawn(Failures(), Size(4, 4), np.random.default_rng(1))) == []


def test_traces(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("at_s,kind,nodes\n10,node,3\n20.5,group,2 0 1\n20.5,process,1\n99,system,\n")
    assert read_trace(file, Size(8, 4)) == (
        Failure(10.0, "node", (3,)),
        Failure(20.5, "group", (0, 1, 2)),
        Failure(20.5, "process", (1,)),
        Failure(99.0, "system", (0, 1, 2, 3)),
    )


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("time,kind\n", "line 1", "columns"),
        ("at_s,kind,nodes\n-1,node,0\n", "line 2", "at_s"),
        ("at_s,kind,nodes\nsoon,node,0\n", "line 2", "at_s"),
        ("at_s,kind,nodes\n1,meteor,0\n", "line 2", "process, node, group, system"),
        ("at_s,kind,nodes\n1,node,4\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,1 2\n", "line 2", "just one"),
        ("at_s,kind,nodes\n5,node,1\n4,node,1\n", "line 3", "ascending"),
    ],
)
def test_impossible_traces_are_refused(tmp_path: Path, text: str, line: str, what: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(file, Size(8, 4))
    assert line in str(caught.value) and what in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv", Size(1, 1))
