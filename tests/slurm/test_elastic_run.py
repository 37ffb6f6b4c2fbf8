"""``deeppart elastic-run`` in an allocation: agents on its nodes, of which one fails."""

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
#: A rank: says where it is, and leaves when it is told; its child, as a data loader's worker, is not told. It ends by
#: the end of its input.
RANK = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
def leave(*_):
    time.sleep(0.3)
    sys.exit(143 if child.poll() is None else 9)
signal.signal(signal.SIGTERM, leave)
names = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "SLURMD_NODENAME")
open(os.path.join(sys.argv[1], ".".join(os.environ[name] for name in names)), "w").close()
time.sleep(200)
"""
BATCH = """#!/bin/bash
exec "$PYTHON" -m deeppart elastic-run --min 1 --max 3 --schedule 0:2 --size-file "$OUT/SIZE" --json \\
    -- "$PYTHON" -I -S "$OUT/rank.py" "$OUT/ranks"
"""


def ranks_of(directory: Path) -> list[list[tuple[str, str, str]]]:
    """Of each run, in their order: (rank, ranks, node)."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        found.setdefault(path.name.split(".")[0], []).append(path)
    return [sorted(tuple(path.name.split(".")[1:]) for path in paths) for paths in found.values()]  # type: ignore[misc]


def events_of(log: Path) -> list[dict[str, Any]]:
    """The file has stdout alone, which is events alone."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.now_and_then(2)
def test_nodes_that_are_left_go_on(slurm: Rig, tmp_path: Path) -> None:
    """Two ranks on two of three nodes; a node fails; one rank; a signal to the whole."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "job").write_text(BATCH)
    env = {"OUT": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    files = [f"--output={tmp_path / 'events'}", f"--error={tmp_path / 'log'}", f"--chdir={tmp_path}"]
    job = slurm.sbatch(tmp_path / "job", "--nodes=3", "--no-kill", "--no-requeue", *files, env=env)

    def wait_for_ranks(runs: int, ranks: int) -> list[tuple[str, str, str]]:
        def found() -> list[list[tuple[str, str, str]]]:
            return ranks_of(tmp_path / "ranks")

        slurm.wait_for(lambda: len(found()) == runs and len(found()[-1]) == ranks, f"run {runs}", LIMIT_S)
        return found()[-1]

    failed = None
    try:
        (_, _, first), (_, _, failed) = both = wait_for_ranks(1, 2)
        assert both == [("0", "2", first), ("1", "2", failed)] and first != failed
        slurm.run("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=test")
        (_, _, again), (_, _, third) = both = wait_for_ranks(2, 2)
        assert again == first and third not in (first, failed)
        (tmp_path / "SIZE").write_text("1\n")
        assert wait_for_ranks(3, 1) == [("0", "1", first)]
        slurm.run("scancel", "--signal=TERM", "--batch", str(job))
        slurm.wait_for_state(job, "FAILED", timeout=LIMIT_S)  # by its exit code, 143
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}") from error
    finally:
        slurm.run("scancel", str(job))
        if failed is not None:
            slurm.run("scontrol", "update", f"NodeName={failed}", "State=RESUME")
    events = events_of(tmp_path / "events")
    names = "start ended start change ended start told end"
    assert [event["event"] for event in events] == names.split()
    assert events[0]["ranks"] == 2 and events[0]["nodes"] == [first, failed]
    assert events[1]["node"] == failed and not events[1]["asked"]
    assert events[2]["nodes"] == [first, third] and events[4]["exit_code"] == 143 and events[4]["asked"]
    assert events[6]["signal"] == "SIGTERM" and events[7]["exit_code"] == 143


@pytest.mark.now_and_then(2)
def test_a_job_without_an_environment_is_told_by_its_steps(slurm: Rig, tmp_path: Path) -> None:
    """Submitted with --export=NONE: ranks have what the script exports. SIGUSR1 goes to them while they know none."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "rank.py").write_text(RANK.replace('"SLURMD_NODENAME")', '"SLURMD_NODENAME", "OF_JOB")'))
    exports = {"OUT": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OF_JOB": "yes"}
    lines = [f"export {name}='{value}'" for name, value in exports.items()]
    (tmp_path / "job").write_text(BATCH.replace("#!/bin/bash", "\n".join(["#!/bin/bash", *lines])))
    files = [f"--output={tmp_path / 'events'}", f"--error={tmp_path / 'log'}", f"--chdir={tmp_path}"]
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
    assert [event["event"] for event in events] == ["start", "ended", "end"]
    assert events[1]["exit_code"] == events[2]["exit_code"] == 143
