"""examples/train_lm.py as its users run it: killed in the middle of a write, started again on 2, 3, 1 and 2 ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.launch import Job, JobResult
from tests.mpi.launchers import ROOT

SCRIPT = ROOT / "examples" / "train_lm.py"
STEPS, EVERY = 24, 4
TINY = ["--layers", "1", "--width", "48", "--heads", "2", "--context", "16", "--batch", "2", "--every", str(EVERY)]
#: Bytes/s of the run that is killed: its parts of 0.25 MB take about a second each.
SLOW = ["--flush-bandwidth", "500e3"]


def arguments(directory: Path, *more: str, steps: int = STEPS) -> list[str]:
    folders = ["--checkpoint-dir", str(directory / "persistent"), "--local-dir", str(directory / "local")]
    return [*folders, "--loss-log", str(directory / "losses.jsonl"), "--steps", str(steps), *TINY, *more]


def losses(directory: Path) -> dict[int, str]:
    """Step -> loss, exactly; the last one logged where a step was trained more than once."""
    lines = (directory / "losses.jsonl").read_text().splitlines()
    return {entry["step"]: entry["hex"] for entry in map(json.loads, lines)}


def committed(directory: Path) -> list[int]:
    """The manifest is the commit (docs/format.md)."""
    return sorted(int(path.parent.name.split("-")[1]) for path in (directory / "persistent").glob("step-*/manifest"))


def being_written(directory: Path, rank: int) -> Path | None:
    """The part file that a rank is writing to the persistent directory, once there is a checkpoint to go back to."""
    if not committed(directory):
        return None
    return next((directory / "persistent").glob(f"step-*/.part-{rank:05d}-of-*.tmp-*"), None)


def resumed_from(result: JobResult) -> int:
    (line,) = [line for line in result.logs[0].splitlines() if line.startswith("resumed from step ")]
    return int(line.rpartition(" ")[2])


@pytest.mark.now_and_then(2)
def test_killed_and_resumed(
    run_ranks: Callable[..., JobResult], start_ranks: Callable[..., Job], tmp_path: Path
) -> None:
    plain, broken, moved = tmp_path / "plain", tmp_path / "broken", tmp_path / "moved"
    for directory in (plain, broken):
        directory.mkdir()
    log = run_ranks(2, SCRIPT, *arguments(plain)).logs[0]
    assert "starting from scratch" in log and f"finished at step {STEPS}" in log
    expected = losses(plain)
    assert list(expected) == list(range(1, STEPS + 1))

    job = start_ranks(2, SCRIPT, *arguments(broken, *SLOW))
    job.wait_for(lambda: being_written(broken, rank=1))
    writing = being_written(broken, rank=1)
    assert writing is not None
    job.kill(1)
    assert job.wait(expect_rc=None).returncode != 0
    assert writing.exists(), "it was not killed in the middle of a write"
    good = committed(broken)
    assert int(writing.parent.name.split("-")[1]) not in good
    assert len(losses(broken)) < STEPS
    shutil.copytree(broken / "persistent", moved / "persistent")  # the job moves on without what is local

    result = run_ranks(2, SCRIPT, *arguments(broken))
    assert good[-1] <= resumed_from(result) < STEPS
    assert losses(broken) == expected

    result = run_ranks(3, SCRIPT, *arguments(moved))
    assert resumed_from(result) == good[-1]
    assert list(losses(moved)) == list(range(good[-1] + 1, STEPS + 1))

    result = run_ranks(1, SCRIPT, *arguments(moved, steps=STEPS + EVERY))
    assert resumed_from(result) == STEPS
    assert list(losses(moved))[-1] == STEPS + EVERY

    result = run_ranks(2, SCRIPT, *arguments(moved, steps=STEPS + 2 * EVERY))
    assert resumed_from(result) == STEPS + EVERY
    assert list(losses(moved))[-1] == STEPS + 2 * EVERY
    assert "per rank from now on: rng, data/position" in result.logs[0], "the second rank repeats the first one's"
