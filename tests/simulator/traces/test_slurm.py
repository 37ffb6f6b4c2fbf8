"""The output of sacct."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.traces.read import format_of, read_slurm, read_trace

from deeppart.errors import ConfigError
from tests.simulator.traces.logs import SACCT, written


def test_a_real_output(tmp_path: Path) -> None:
    trace = read_slurm(written(tmp_path, SACCT))
    assert [(event.at_s, event.kind, event.nodes) for event in trace.events] == [
        (1.0, "process", ("node1",)),
        (15.0, "node", ("node1", "node2")),
        (30.0, "node", ("node1",)),
        (35.0, "preemption", ("node3", "node4")),
        (118.0, "time limit", ("node3",)),
    ]
    assert trace.seconds == 122.0  # from the first start to the last one, at which the job that still runs began
    assert list(trace.waits_s) == [1, 1, 0, 4, 0, 0, 12, 0, 0, 4]
    assert trace.names == ("node1", "node2", "node3", "node4")


def test_two_jobs_that_lost_the_same_node_lost_it_once(tmp_path: Path) -> None:
    """Both of the jobs that lost a node within a minute had node1."""
    kinds = [event.kind for event in read_trace(written(tmp_path, SACCT)).events]
    assert sorted(kinds) == ["node", "preemption", "process", "time limit"]


def test_steps_and_jobs_that_have_not_begun_are_left_out(tmp_path: Path) -> None:
    more = (
        "1.batch|COMPLETED|2026-11-27T15:54:11|2026-11-27T15:54:11|2026-11-27T15:54:13|1|1|node1\n"
        "8|PENDING|2026-11-27T15:56:11|Unknown|Unknown|1|1|None assigned\n"
        "9|CANCELLED by 0|2026-11-27T15:56:11|None|2026-11-27T15:56:12|1|1|None assigned\n\n"
    )
    plain, longer = read_slurm(written(tmp_path, SACCT)), read_slurm(written(tmp_path, SACCT + more))
    assert longer == plain


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        (
            "1|BROKEN|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:13|2|2|n1",
            "line 2, column State",
            "NODE_FAIL",
        ),
        ("1|FAILED|2026-11-27T15:54:10|yesterday|2026-11-27T15:54:13|2|2|n1", "column Start", "SLURM_TIME_FORMAT"),
        ("1|FAILED|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:10|2|2|n1", "column End", "later"),
        (
            "1|FAILED|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:13|2|2|n[1-",
            "column NodeList",
            "node[001",
        ),
        ("1|FAILED|my|job|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:13|2|2|n1", "line 2", "JobName"),
        ("1|PENDING|2026-11-27T15:54:10|Unknown|Unknown|2|2|None assigned", "line 1", "at least one"),
    ],
)
def test_impossible_lines(tmp_path: Path, line: str, where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_slurm(written(tmp_path, SACCT.splitlines()[0] + "\n" + line + "\n"))
    assert where in str(caught.value) and what in str(caught.value)


def test_a_step_is_no_job_whatever_the_file_begins_with(tmp_path: Path) -> None:
    """With a mark of the order of bytes, or with JobIDRaw, no column was JobID, and steps counted as jobs."""
    step = "1.batch|COMPLETED|2026-11-27T15:54:11|2026-11-27T15:54:11|2026-11-27T15:54:13|1|1|node1\n"
    plain = read_slurm(written(tmp_path, SACCT))
    for text in ("\ufeff" + SACCT + step, (SACCT + step).replace("JobID", "JobIDRaw")):
        found = read_slurm(written(tmp_path, text))
        assert found == plain
        assert format_of(written(tmp_path, text)) == "slurm"
    without = "\n".join(line.partition("|")[2] for line in SACCT.splitlines())
    with pytest.raises(ConfigError, match="no column JobID"):
        read_slurm(written(tmp_path, without))
