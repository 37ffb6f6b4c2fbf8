"""``deeppart-sim cluster``: tables, documents, and what restart times are worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.cluster.toy import write_trace
from tests.simulator.commands import sim, sim_json

JOBS = [(str(number), 100 * number, name, 2, 64) for number, name in enumerate(("scales", "stays", "scales"))]


@pytest.fixture
def toy(tmp_path: Path) -> tuple[str, ...]:
    write_trace(tmp_path / "trace", JOBS)
    return ("--trace", str(tmp_path / "trace"), "--workload", "workloads/toy", "--nodes", "2", "--gpus", "2")


def test_every_policy_and_every_restart_time(capsys: pytest.CaptureFixture[str], toy: tuple[str, ...]) -> None:
    found = sim_json(capsys, "cluster", *toy, "--policy", "fifo,tiresias,optimus,pollux", "--restart", "0,30s,5min")
    assert len(found["outcomes"]) == 12 and all(len(each["jobs"]) == 3 for each in found["outcomes"])
    for policy in ("fifo", "tiresias", "optimus", "pollux"):
        means = [each["mean_s"] for each in found["outcomes"] if each["policy"] == policy]
        assert means == sorted(means) and means[0] < means[-1] - 200
    restarts = {each["policy"]: each["restarts"] for each in found["outcomes"]}
    assert restarts["fifo"] == 0 < restarts["pollux"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "lifo"), "no such policy"),
        (("--workload", "w"), "no such workload"),
        (("--restart", "soon"), "--restart"),
        (("--machine", "frontier", "--restart", "1s"), "--restart would change nothing"),
        (("--restart-mode", "job"), "--restart-mode would change nothing"),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str], toy: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    code, _, err = sim(capsys, "cluster", *toy, *options)
    assert code == 2 and said in err
