"""Real jobs that are watched: while they run, after they were killed, and when the next one has begun."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.telemetry import recorder
from tests.mpi.on_nodes import config
from tests.unit.cli_support import call, invoke
from tests.unit.telemetry.test_metrics import parsed

pytestmark = pytest.mark.timeout(110)


def watched(directory: Path) -> dict[str, Any]:
    """What ``deeppart watch --json`` says, whatever the exit code."""
    found: dict[str, Any] = json.loads(invoke("watch", directory / "ckpt", "--json").stdout)
    return found


def train(directory: Path) -> None:
    """Two nodes of one rank; the second takes long to write its part of step 2, and for good where nobody says go."""
    recorder.LONG_S = recorder.AGAIN_S = 0.0
    recorder._LEAST_S = 0.0
    settings = {"metrics_file": str(directory / "metrics-{rank}.prom"), "compression": "none", "timeout": 60.0}
    with deeppart.Checkpointer(config(directory, **settings)) as checkpointer:
        state = {"w": torch.zeros(100_000)}
        step = checkpointer.restore(state) or 0
        checkpointer.checkpoint(state, step + 1).wait()
        (directory / f"saved-{checkpointer.rank}").touch()
        if checkpointer.rank == 1:
            writing = checkpointer._pipeline._writer.write_persistent

            def slow(*arguments: Any) -> Any:
                while not (directory / "go").exists():
                    time.sleep(0.01)
                return writing(*arguments)

            vars(checkpointer._pipeline._writer)["write_persistent"] = slow
        checkpointer.checkpoint(state, step + 2).wait()


def wait_until(job: Any, directory: Path, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    last: dict[str, Any] = {}

    def holds() -> bool:
        last.clear()
        last.update(watched(directory))
        return "error" not in last and condition(last)

    job.wait_for(holds)
    return last


def steps_of(seen: dict[str, Any]) -> dict[str, int | None]:
    """The newest step that is complete at each level."""
    return {level["name"]: level["step"] for level in seen["levels"]}


def test_a_job_is_watched_while_it_runs_after_it_was_killed_and_when_the_next_begins(
    start_ranks: Any, tmp_path: Path
) -> None:
    with start_ranks(2, train, tmp_path) as job:
        seen = wait_until(
            job,
            tmp_path,
            lambda seen: (
                any(level["late"] == [1] for each in seen["checkpoints"] for level in each["levels"])
                and steps_of(seen)["partner"] == 2
                and all(each["over"] for each in seen["checkpoints"] if each["step"] == 1)  # both ranks have said so
            ),
        )
        assert (seen["state"], seen["ranks"][0]["world_size"], seen["ranks"][0]["nodes"]) == ("running", 2, 2)
        assert [(each["rank"], each["node"]) for each in seen["ranks"]] == [(0, "node0"), (1, "node1")]
        assert steps_of(seen)["persistent"] == 1, "as far as it has come"
        assert any("persistent: waiting for rank 1" in reason for reason in seen["reasons"])
        assert "in flight  step 2" in call("watch", tmp_path / "ckpt", "--once", code=1)
        first = seen["owner"]["session"]
        for rank in (0, 1):
            text = (tmp_path / f"metrics-{rank}.prom").read_text()
            (running,) = parsed(text)["deeppart_session_running"].items()
            assert dict(running[0])["rank"] == str(rank) and running[1] == 1
        job.kill(0)  # mpirun ends the other one
        job.wait(expect_rc=None)
    seen = watched(tmp_path)
    assert (seen["state"], seen["owner"]["running"], seen["ranks"][0]["ended"]) == ("died", False, None)
    assert [each["step"] for each in seen["checkpoints"] if not each["over"]] == [2]
    (tmp_path / "go").touch()
    with start_ranks(2, train, tmp_path) as job:
        job.wait()
    seen = watched(tmp_path)
    assert (seen["state"], seen["reasons"], seen["ranks"][0]["restored"]) == ("ended", [], 2)
    assert seen["owner"]["session"] != first and [level["step"] for level in seen["levels"]] == [4, 4, 4]
    assert len(list((tmp_path / "ckpt").glob("status-*"))) == 1, "those of the earlier session are gone"


def left_by_an_exception(directory: Path) -> None:
    """The end of an interpreter waits for what is left; mpi4py ends the job as soon as the exception arrives."""
    try:
        with deeppart.Checkpointer(config(directory, local_dir=None, node_size=None)) as checkpointer:
            checkpointer.checkpoint({"x": 1}, 1).wait()
            raise ZeroDivisionError
    finally:
        for thread in threading.enumerate():
            if thread.name == "deeppart-leave":
                thread.join(60)


def test_a_job_that_an_exception_ends_says_so(run_ranks: Any, tmp_path: Path) -> None:
    run_ranks(1, left_by_an_exception, tmp_path, expect_rc=None)
    seen = watched(tmp_path)
    assert seen["state"] == "failed" and seen["ranks"][0]["ended"] is not None
