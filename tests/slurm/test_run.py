"""``deeppart run`` in an allocation: agents on its nodes, of which one fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launchers import ROOT
from tests.slurm.rig import Rig

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(240)]
#: Seconds.
LIMIT_S = 60.0
#: A rank: says where it is, and leaves when it is told or asked; its child, as a data loader's worker, is not told. It
#: ends by the end of its input.
RANK = """
import os, signal, subprocess, sys, time
from deeppart.progress import is_asked_to_leave
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
def leave(*_):
    time.sleep(0.3)
    sys.exit(143 if child.poll() is None else 9)
signal.signal(signal.SIGTERM, leave)
names = ("DEEPPART_EPOCH", "RANK", "WORLD_SIZE", "SLURMD_NODENAME")
open(os.path.join(sys.argv[1], ".".join(os.environ[name] for name in names)), "w").close()
until_s = time.monotonic() + 200
while time.monotonic() < until_s:
    time.sleep(0.1)
    if is_asked_to_leave():
        leave()
"""
BATCH = """#!/bin/bash
exec "$PYTHON" -m deeppart run --ranks 1 --min 1 --size-file "$OUT/SIZE" --preload none --log "$OUT/events" \\
    -- "$PYTHON" "$OUT/rank.py" "$OUT/ranks"
"""


def ranks_of(directory: Path) -> dict[int, list[tuple[str, str, str]]]:
    """Of each epoch: (rank, ranks, node)."""
    found: dict[int, list[tuple[str, str, str]]] = {}
    for path in directory.iterdir():
        epoch, *rank = path.name.split(".")
        found.setdefault(int(epoch), []).append(tuple(rank))  # type: ignore[arg-type]
    return {epoch: sorted(ranks) for epoch, ranks in found.items()}


def events_of(log: Path) -> list[dict[str, Any]]:
    """Without those that tell how soon the ranks train."""
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return [each for each in found if each["event"] != "training"]


@pytest.mark.now_and_then(2)
def test_nodes_that_are_left_go_on(slurm: Rig, tmp_path: Path) -> None:
    """Three ranks; a node fails; two ranks; one, as the file says; a signal to the whole."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "job").write_text(BATCH)
    env = {"OUT": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    files = [f"--output={tmp_path / 'log'}", f"--chdir={tmp_path}"]
    job = slurm.sbatch(tmp_path / "job", "--nodes=3", "--no-kill", "--no-requeue", *files, env=env)

    def wait_for_ranks(epoch: int, ranks: int) -> list[tuple[str, str, str]]:
        def found() -> list[tuple[str, str, str]]:
            return ranks_of(tmp_path / "ranks").get(epoch, [])

        slurm.wait_for(lambda: len(found()) == ranks, f"epoch {epoch}", LIMIT_S)
        assert [(rank, count) for rank, count, _ in found()] == [(str(rank), str(ranks)) for rank in range(ranks)]
        return found()

    failed = None
    try:
        first, _, failed = (node for _, _, node in wait_for_ranks(1, 3))
        slurm.run("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=test")
        left = [node for _, _, node in wait_for_ranks(2, 2)]
        assert failed not in left and first in left
        (tmp_path / "SIZE").write_text("1\n")
        wait_for_ranks(3, 1)
        slurm.run("scancel", "--signal=TERM", "--batch", str(job))
        slurm.wait_for_state(job, "FAILED", timeout=LIMIT_S)  # by its exit code, 143
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}") from error
    finally:
        slurm.run("scancel", str(job))
        if failed is not None:
            slurm.run("scontrol", "update", f"NodeName={failed}", "State=RESUME")
    events = events_of(tmp_path / "events")
    assert [event["event"] for event in events] == ["started", "node lost", "started", "change", "started", "signal"]
    assert events[1]["node"] == failed and events[5]["text"] == "SIGTERM"


@pytest.mark.now_and_then(2)
def test_a_job_without_an_environment_is_told_by_its_steps(slurm: Rig, tmp_path: Path) -> None:
    """Submitted with --export=NONE: ranks have what the script exports. SIGUSR1 goes to all processes of the steps."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "rank.py").write_text(RANK.replace('"SLURMD_NODENAME")', '"SLURMD_NODENAME", "OF_JOB")'))
    exports = {"OUT": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OF_JOB": "yes"}
    lines = [f"export {name}='{value}'" for name, value in exports.items()]
    (tmp_path / "job").write_text(BATCH.replace("#!/bin/bash", "\n".join(["#!/bin/bash", *lines])))
    files = [f"--output={tmp_path / 'log'}", f"--chdir={tmp_path}"]
    job = slurm.sbatch(tmp_path / "job", "--nodes=2", "--no-kill", "--no-requeue", "--export=NONE", *files)
    try:
        slurm.wait_for(lambda: len(list((tmp_path / "ranks").glob("*.yes"))) == 2, "two ranks", LIMIT_S)
        slurm.run("scancel", "--signal=USR1", str(job))  # --signal=USR1@120 without B:
        slurm.wait_for_state(job, "FAILED", timeout=LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}") from error
    finally:
        slurm.run("scancel", str(job), check=False)
    events = events_of(tmp_path / "events")
    assert events[0]["event"] == "started" and {"event": "signal", "text": "SIGUSR1"}.items() <= events[1].items()
