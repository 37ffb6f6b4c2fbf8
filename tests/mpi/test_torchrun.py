"""Jobs that torchrun has started, and such as only find MASTER_ADDR in their environment: no MPI anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.launchers import ROOT, environment
from tests.mpi.torchrun_job import equal, state
from tests.ports import free_port

SCRIPT = ROOT / "tests" / "mpi" / "torchrun_job.py"
LIMIT_S = 200.0

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def finished(processes: list[subprocess.Popen[bytes]], log: Any, expect_rc: int | None) -> None:
    """Wait for the end of processes, each the first of a session; whatever happens, none of theirs is left."""
    try:
        for process in processes:
            code = process.wait(LIMIT_S)
            log.seek(0)
            assert expect_rc is None or code == expect_rc, log.read().decode()
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def torchrun(n: int, what: str, directory: Path, expect_rc: int | None = 0) -> list[dict[str, Any]]:
    """What the ranks told, in rank order."""
    return told(n, [torchrun_command(n, [str(SCRIPT), what, str(directory)])], directory, {}, expect_rc)


def torchrun_command(n: int, arguments: list[str]) -> list[str]:
    """Starts ``n`` ranks of a script, or of a module after ``-m``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "--master-port"]
    return [*command, str(free_port()), *arguments]


def told(
    n: int, commands: list[list[str]], directory: Path, variables: dict[str, str], expect_rc: int | None = 0
) -> list[dict[str, Any]]:
    for old in directory.glob("told-*"):
        old.unlink()
    env = {**environment({}, LIMIT_S), **variables}
    with tempfile.TemporaryFile() as log:
        processes = [
            subprocess.Popen(
                command,
                env={**env, "RANK": str(rank)} if len(commands) > 1 else env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for rank, command in enumerate(commands)
        ]
        finished(processes, log, expect_rc)
    files = [directory / f"told-{rank}.json" for rank in range(n)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def test_saved_on_three_ranks_and_restored_on_two_and_four(tmp_path: Path) -> None:
    assert torchrun(3, "save", tmp_path) == [{"ranks": 3, "rank": rank, "mpi": False} for rank in range(3)]
    for n in (2, 4):
        for found in torchrun(n, "restore", tmp_path):
            assert found["step"] == 2 and found["equal"], found
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


def test_a_lost_node_is_rebuilt(tmp_path: Path) -> None:
    torchrun(3, "save", tmp_path)
    for path in (tmp_path / "ckpt").glob("step-*"):
        (path / "manifest").unlink()
    for path in sorted((tmp_path / "local" / "1").rglob("*.dp*")):
        path.unlink()
    for found in torchrun(3, "restore", tmp_path):
        assert found["step"] == 2 and found["equal"], found
        assert any("partner" in line for line in found["explanation"])


def test_variables_of_env_alone(tmp_path: Path) -> None:
    """As srun does it in scripts that set them."""
    commands = [[sys.executable, str(SCRIPT), "save", str(tmp_path)]] * 3
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert [each["ranks"] for each in told(3, commands, tmp_path, variables)] == [3, 3, 3]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_training_uses_torch_distributed_at_the_same_place(tmp_path: Path, when: str) -> None:
    assert torchrun(2, f"group-{when}", tmp_path) == [{"ranks": 2, "sum": 2.0}] * 2
    commands = [[sys.executable, str(SCRIPT), f"group-{when}", str(tmp_path / "second")]] * 2
    (tmp_path / "second").mkdir()
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert told(2, commands, tmp_path / "second", variables) == [{"ranks": 2, "sum": 2.0}] * 2


def test_process_groups(tmp_path: Path) -> None:
    for rank, found in enumerate(torchrun(4, "two-groups", tmp_path)):
        assert (found["ranks"], found["rank"]) == (2, rank % 2)
        assert "not in the process group" in found["refused"]
    for half in (0, 1):
        assert equal(deeppart.load(tmp_path / f"half-{half}" / "ckpt"), state(1 + half))


def test_the_example_goes_on_with_more_ranks(tmp_path: Path) -> None:
    for n, steps in ((2, 10), (3, 20)):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "--master-port"]
        command += [str(free_port()), str(ROOT / "examples" / "train_lm.py"), "--steps", str(steps), "--every", "10"]
        command += ["--layers", "1", "--width", "48", "--heads", "2", "--checkpoint-dir", str(tmp_path / "ckpt")]
        done = subprocess.run(
            command, env=environment({}, LIMIT_S), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"finished at step {steps}" in done.stdout
    assert "resumed from step 10" in done.stdout


def test_a_rank_that_comes_too_late_is_named_and_the_next_start_succeeds(tmp_path: Path) -> None:
    commands = [[sys.executable, str(SCRIPT), "late", str(tmp_path)]] * 3
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    found = told(3, commands, tmp_path, variables)
    assert [each["ranks"] for each in found] == [3, 3, 3]
    assert all(each["error"].endswith("for rank 2") for each in found[:2]), found


def test_a_rank_that_dies_is_named_in_under_a_second(tmp_path: Path) -> None:
    commands = [[sys.executable, str(SCRIPT), "die", str(tmp_path)]] * 3  # torchrun would end the others
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    found = told(3, commands, tmp_path, variables, expect_rc=None)
    for rank in (0, 2):
        assert "rank 1" in found[rank]["text"] and "gone" in found[rank]["text"], found
        assert found[rank]["after_s"] < 1.0, found
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2)), "what was committed stays"
