"""Traces as the failures of one job."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.campaign.failures import Failure, Size, failures_from

from deeppart.errors import ConfigError
from tests.simulator.traces.logs import LANL, SACCT, written


def test_a_table(tmp_path: Path) -> None:
    file = written(
        tmp_path, "at_s,kind,nodes\n10,node,3\n20.5,group,2 0 1\n20.5,process,1\n99,system,\n100,preemption,\n"
    )
    assert failures_from(file, Size(8, 4)) == (
        Failure(10.0, "node", (3,)),
        Failure(20.5, "group", (0, 1, 2)),
        Failure(20.5, "process", (1,)),
        Failure(99.0, "system", (0, 1, 2, 3)),
        Failure(100.0, "preemption", (0, 1, 2, 3)),
    )
    with pytest.raises(ConfigError, match="0 to 2"):
        failures_from(file, Size(8, 3))


def test_a_table_of_more_nodes_than_the_job_has(tmp_path: Path) -> None:
    file = written(tmp_path, "# nodes = 9\nat_s,kind,nodes\n1,node,8\n2,group,1 8\n3,node,0\n")
    assert failures_from(file, Size(2, 2)) == (Failure(2.0, "group", (1,)), Failure(3.0, "node", (0,)))
    with pytest.raises(ConfigError, match="at most 9 nodes"):
        failures_from(file, Size(10, 10))


def test_a_run_longer_than_the_trace(tmp_path: Path) -> None:
    file = written(tmp_path, "# seconds = 86400\nat_s,kind,nodes\n1,node,0\n")
    assert len(failures_from(file, Size(2, 2), wall_s=86400.0)) == 1
    with pytest.raises(ConfigError, match="at most 1"):
        failures_from(file, Size(2, 2), wall_s=86401.0)


def test_a_log_of_jobs(tmp_path: Path) -> None:
    """Node k of the job is the k-th of the log; both losses of node1 within a minute are one."""
    file = written(tmp_path, SACCT)
    assert failures_from(file, Size(4, 4)) == (
        Failure(1.0, "process", (0,)), Failure(15.0, "node", (0,)), Failure(35.0, "preemption", (0, 1, 2, 3)),
    )  # fmt: skip
    assert [failure.kind for failure in failures_from(file, Size(2, 2))] == ["process", "node"]
    with pytest.raises(ConfigError, match="at most 4 nodes"):
        failures_from(file, Size(5, 5))


def test_where_the_log_does_not_say_which_node_they_take_turns(tmp_path: Path) -> None:
    line = "1|NODE_FAIL|2026-11-27T15:00:00|2026-11-27T15:00:00|2026-11-27T15:{}:00|n[1-3]\n"
    text = "JobID|State|Submit|Start|End|NodeList\n" + "".join(line.format(minute) for minute in (10, 20, 30, 40))
    assert [failure.nodes for failure in failures_from(written(tmp_path, text), Size(3, 3))] == [(0,), (1,), (2,), (0,)]


def test_a_machines_log(tmp_path: Path) -> None:
    found = failures_from(written(tmp_path, LANL), Size(2, 2), system="2")
    assert [failure.nodes for failure in found] == [(1,), (1,), (0,), (0,)]
    with pytest.raises(ConfigError, match="--system would change nothing"):
        failures_from(written(tmp_path, SACCT), Size(2, 2), system="2")


@pytest.mark.parametrize("seconds", [2591999.9, 86400.5, 7 * 86400 + 0.01, 0.3])
def test_the_days_that_are_told_are_accepted(tmp_path: Path, seconds: float) -> None:
    file = written(tmp_path, f"# seconds = {seconds}\nat_s,kind,nodes\n0,node,0\n")
    with pytest.raises(ConfigError) as caught:
        failures_from(file, Size(2, 2), wall_s=100 * 86400.0)
    days = float(str(caught.value).partition("at most ")[2].split()[0])
    assert len(failures_from(file, Size(2, 2), wall_s=days * 86400)) == 1 and days * 86400 > seconds - 1
