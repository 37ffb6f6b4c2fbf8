"""The output of sacct."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deeppart_simulator.traces.read import format_of, node_names, read_slurm

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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("a[1-2],b3,c[5]", ["a1", "a2", "b3", "c5"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("None assigned", []),
        ("", []),
    ],
)
def test_lists(text: str, names: list[str]) -> None:
    assert list(node_names(text)) == names


@pytest.mark.parametrize(
    "text", ["node[1-", "node[1-2", "node]1[", "node[a-b]", "node[3-1]", "node[]", "a,,b", ",a", "a,"]
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of nodes|brackets|upwards"):
        node_names(text)


@pytest.mark.parametrize("text", ["n[0-99999999999]", "n[1-9999]m[1-9999]", ",".join(["n[1-900000]"] * 2)])
def test_more_nodes_than_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="at most 1048576"):
        node_names(text)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's own reading of them needs scontrol")
@pytest.mark.parametrize("text", ["node[1-3]", "node[001-003,7]", "a[1-2],b3,c[5]", "rack[1-2]n[1-2]", "node[098-101]"])
def test_as_slurm_reads_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}
    told = subprocess.run(
        ["scontrol", "show", "hostnames", text], env=env, capture_output=True, text=True, timeout=20, check=True,
    ).stdout  # fmt: skip
    assert list(node_names(text)) == told.split()
