"""Jobs that torchrun has started, and such as only find MASTER_ADDR in their environment: no MPI anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.launchers import ROOT
from tests.mpi.torchrun import torchrun, torchrun_prints, with_variables
from tests.mpi.torchrun_job import TIMEOUT_S, equal, state
from tests.sampling import chosen, is_due

SCRIPT = ROOT / "tests" / "mpi" / "torchrun_job.py"

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def job(n: int, what: str, directory: Path) -> list[dict[str, Any]]:
    """What the ranks told, in rank order."""
    return torchrun(n, [SCRIPT, what, directory], directory)


def test_saved_on_three_ranks_and_restored_on_two_and_four(tmp_path: Path) -> None:
    assert job(3, "save", tmp_path) == [{"ranks": 3, "rank": rank, "mpi": False} for rank in range(3)]
    for n in (2, 4):
        for found in job(n, "restore", tmp_path):
            assert found["step"] == 2 and found["equal"], found
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


def test_a_lost_node_is_rebuilt(tmp_path: Path) -> None:
    job(3, "save", tmp_path)
    for path in (tmp_path / "ckpt").glob("step-*"):
        (path / "manifest").unlink()
    for path in sorted((tmp_path / "local" / "1").rglob("*.dp*")):
        path.unlink()
    for found in job(3, "restore", tmp_path):
        assert found["step"] == 2 and found["equal"], found
        assert any("partner" in line for line in found["explanation"])


def test_variables_of_env_alone(tmp_path: Path) -> None:
    """As srun does it in scripts that set them; in one run of four each rank is an interpreter of its own."""
    found = with_variables(2, [SCRIPT, "save", tmp_path], tmp_path, anew=is_due("variables", chosen(), 4))
    assert [each["ranks"] for each in found] == [2, 2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_training_uses_torch_distributed_at_the_same_place(tmp_path: Path, when: str) -> None:
    assert job(2, f"group-{when}", tmp_path) == [{"ranks": 2, "sum": 2.0}] * 2
    second = tmp_path / "second"
    second.mkdir()
    assert with_variables(2, [SCRIPT, f"group-{when}", second], second) == [{"ranks": 2, "sum": 2.0}] * 2


def test_process_groups(tmp_path: Path) -> None:
    for rank, found in enumerate(job(4, "two-groups", tmp_path)):
        assert (found["ranks"], found["rank"]) == (2, rank % 2)
        assert "not in the process group" in found["refused"]
    for half in (0, 1):
        assert equal(deeppart.load(tmp_path / f"half-{half}" / "ckpt"), state(1 + half))


@pytest.mark.now_and_then(2)
def test_the_example_goes_on_with_more_ranks(tmp_path: Path) -> None:
    script: list[str | Path] = [
        ROOT / "examples" / "train_lm.py",
        "--layers",
        "1",
        "--width",
        "48",
        "--heads",
        "2",
        "--every",
        "10",
    ]
    for n, steps in ((2, 10), (3, 20)):
        printed = torchrun_prints(n, [*script, "--steps", str(steps), "--checkpoint-dir", tmp_path / "ckpt"])
        assert f"finished at step {steps}" in printed
    assert "resumed from step 10" in printed


def test_a_rank_that_comes_too_late_is_named_and_the_next_start_succeeds(tmp_path: Path) -> None:
    found = with_variables(3, [SCRIPT, "late", tmp_path], tmp_path)
    assert [each["ranks"] for each in found] == [3, 3, 3]
    assert all(each["error"].endswith("for rank 2") for each in found[:2]), found


def test_who_has_not_the_secret_is_no_rank(tmp_path: Path) -> None:
    """A garbled card, and a sound one without a tag, do not end the start, nor does a stranger take a rank's place."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"s" * 32)
    found = with_variables(3, [SCRIPT, "intruded", tmp_path], tmp_path)
    assert [each["rank"] for each in found] == [0, 1, 2]
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


def test_ranks_with_other_secrets_do_not_meet_and_say_so(tmp_path: Path) -> None:
    found = with_variables(2, [SCRIPT, "secrets", tmp_path], tmp_path)
    for each in found:
        assert "skipped" in each["error"] and "give all ranks one DEEPPART_SECRET_FILE" in each["error"], found


def test_a_rank_that_dies_is_named_long_before_the_timeout(tmp_path: Path) -> None:
    # Not by torchrun, which would end the others.
    found = with_variables(3, [SCRIPT, "die", tmp_path], tmp_path, expect_rc=None)
    for rank in (0, 2):
        assert "rank 1" in found[rank]["text"] and "gone" in found[rank]["text"], found
        assert found[rank]["after_s"] < TIMEOUT_S / 2, found
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2)), "what was committed stays"
