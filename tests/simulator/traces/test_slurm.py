"""The output of sacct."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.traces.read import format_of
from deeppart_simulator.traces.record import KINDS
from deeppart_simulator.traces.schedulers import is_slurm, read_slurm

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
    seen = trace.observation
    # From the first start to the last one, at which the job that still runs began.
    assert (seen.seconds, seen.nodes) == (122.0, 4)
    assert seen.node_s == 2 * 2 + 1 + 2 * 11 + 2 * 16 + 3 + 3 + 2 * 71 + 4 * 6 + 68 + 0
    assert list(trace.waits_s) == [1, 1, 0, 4, 0, 0, 12, 0, 0, 4]
    assert trace.runs is not None and [KINDS[number] for number in trace.runs.ended if number >= 0] == [
        "process", "node", "preemption", "node", "time limit",
    ]  # fmt: skip
    assert trace.names == ("node1", "node2", "node3", "node4") and trace.notes == ()


def test_steps_and_jobs_that_have_not_begun_are_left_out(tmp_path: Path) -> None:
    more = (
        "1.batch|COMPLETED|2026-11-27T15:54:11|2026-11-27T15:54:11|2026-11-27T15:54:13|1|1|node1\n"
        "8|PENDING|2026-11-27T15:56:11|Unknown|Unknown|1|1|None assigned\n"
        "9|CANCELLED by 0|2026-11-27T15:56:11|None|2026-11-27T15:56:12|1|1|None assigned\n\n"
    )
    plain, longer = read_slurm(written(tmp_path, SACCT)), read_slurm(written(tmp_path, SACCT + more))
    assert longer.observation == plain.observation and longer.events == plain.events
    assert longer.notes == ("1 lines of steps left out", "2 jobs that have not begun")


def test_other_columns_and_another_order(tmp_path: Path) -> None:
    rows = [line.split("|") for line in SACCT.splitlines()]
    turned = "\n".join("|".join(["x", *reversed(row)]) for row in rows) + "\n"
    plain, other = read_slurm(written(tmp_path, SACCT)), read_slurm(written(tmp_path, turned))
    assert plain.events == other.events and plain.observation == other.observation


def test_times_with_a_zone(tmp_path: Path) -> None:
    shifted = SACCT.replace("2026-11-27T15:5", "2026-11-27T17:5").replace("T17:54:11|", "T17:54:11+02:00|")
    with_zone = "\n".join(
        "|".join(cell + "+02:00" if cell.startswith("2026") and "+" not in cell else cell for cell in line.split("|"))
        for line in shifted.splitlines()
    )
    assert read_slurm(written(tmp_path, with_zone)).events == read_slurm(written(tmp_path, SACCT)).events


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


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column NodeList"):
        read_slurm(written(tmp_path, "JobID|State|Start|End\n"))
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_slurm(tmp_path / "none")


def test_how_it_begins() -> None:
    assert is_slurm(SACCT.splitlines()[0]) and not is_slurm("at_s,kind,nodes") and not is_slurm("a|b")


def test_a_step_is_no_job_whatever_the_file_begins_with(tmp_path: Path) -> None:
    """With a mark of the order of bytes, or with JobIDRaw, no column was JobID, and steps counted as jobs."""
    step = "1.batch|COMPLETED|2026-11-27T15:54:11|2026-11-27T15:54:11|2026-11-27T15:54:13|1|1|node1\n"
    plain = read_slurm(written(tmp_path, SACCT))
    for text in ("\ufeff" + SACCT + step, (SACCT + step).replace("JobID", "JobIDRaw")):
        found = read_slurm(written(tmp_path, text))
        assert found.observation == plain.observation and found.notes == ("1 lines of steps left out",)
        assert format_of(written(tmp_path, text)) == "slurm"
    without = "\n".join(line.partition("|")[2] for line in SACCT.splitlines())
    with pytest.raises(ConfigError, match="no column JobID"):
        read_slurm(written(tmp_path, without))


def test_a_job_that_was_cancelled_before_it_had_a_node_did_not_wait_for_its_turn(tmp_path: Path) -> None:
    """Slurm writes the time of the end as that of the start, too."""
    line = "9|CANCELLED by 0|2026-11-27T15:54:10|2026-11-27T19:00:00|2026-11-27T19:00:00|1|1|None assigned\n"
    plain, longer = read_slurm(written(tmp_path, SACCT)), read_slurm(written(tmp_path, SACCT + line))
    assert longer.observation == plain.observation and list(longer.waits_s) == list(plain.waits_s)
    assert longer.notes == ("1 jobs without a node left out",)


def test_times_with_a_zone_and_without_one_do_not_mix(tmp_path: Path) -> None:
    mixed = SACCT.replace("2026-11-27T15:54:26|2|8", "2026-11-27T17:54:26+02:00|2|8")
    with pytest.raises(ConfigError) as caught:
        read_slurm(written(tmp_path, mixed))
    assert "line 4, column End" in str(caught.value) and "a zone in all times" in str(caught.value)
