"""Jobs that torchrun has started, and such as only find MASTER_ADDR in their environment: no MPI anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.launchers import ROOT
from tests.mpi.torchrun import torchrun, torchrun_prints, with_variables
from tests.mpi.torchrun_job import equal, state
from tests.ports import free_port
from tests.sampling import chosen, is_due

SCRIPT = ROOT / "tests" / "mpi" / "torchrun_job.py"

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def job(n: int, what: str, directory: Path) -> list[dict[str, Any]]:
    """What the ranks told, in rank order."""
    return torchrun(n, [SCRIPT, what, directory], directory)


def test_saved_on_three_ranks_and_restored_on_these_and_on_two_and_four(tmp_path: Path) -> None:
    """On three, from what nodes have, of which one is lost."""
    assert job(3, "save", tmp_path) == [{"ranks": 3, "rank": rank, "mpi": False} for rank in range(3)]
    manifests = list((tmp_path / "ckpt").glob("step-*/manifest"))
    for path in manifests:
        path.rename(path.with_suffix(".away"))
    for path in sorted((tmp_path / "local" / "1").rglob("*.dp*")):
        path.unlink()
    for found in job(3, "restore", tmp_path):
        assert found["step"] == 2 and found["equal"], found
        assert any("partner" in line for line in found["explanation"])
    for path in manifests:
        path.with_suffix(".away").rename(path)
    for n in (2, 4):
        for found in job(n, "restore", tmp_path):
            assert found["step"] == 2 and found["equal"], found
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


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
        *"--layers 1 --width 48 --heads 2 --every 10".split(),
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
    """A garbled card, and a sound one without a tag, do not end the start, nor does a stranger take a rank's place.

    Ranks are started as by srun, in scripts that set variables; in one run of four in interpreters of their own.
    """
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"s" * 32)
    found = with_variables(3, [SCRIPT, "intruded", tmp_path], tmp_path, anew=is_due("variables", chosen(), 4))
    assert [(each["ranks"], each["rank"]) for each in found] == [(3, 0), (3, 1), (3, 2)]
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


#: How torchrun is started: options, variables. The last one has a new store for each start of the ranks.
FORMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "at-a-port": (["--master-port", "{port}"], {}),
    "at-one-store": (["--standalone"], {}),
    "as-documented": (["--standalone"], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


def restarted(form: str, restarts: int) -> dict[str, Any]:
    """Of :func:`torchrun`: so started, with so many restarts allowed."""
    options, variables = FORMS[form]
    given = [each.format(port=free_port()) for each in options]
    return {"options": [*given, "--max-restarts", str(restarts)], "variables": variables}


@pytest.mark.now_and_then(4)
@pytest.mark.parametrize(
    ("what", "form"), [("alone", "at-a-port"), ("alone", "at-one-store"), ("ddp", "as-documented")]
)
def test_five_restarts_in_a_row_come_to_the_same_end(tmp_path: Path, what: str, form: str) -> None:
    """The library's ranks meet again however torchrun was started; those of gloo where each start has its own store."""
    found = []
    for job in ("whole", "killed"):
        (tmp_path / job).mkdir()
        found.append(torchrun(4, [SCRIPT, f"{job}-{what}", tmp_path / job], tmp_path / job, **restarted(form, 5)))
    whole, killed = ([each.pop("starts") for each in ranks] for ranks in found)
    assert whole == [0] * 4 and killed == [5] * 4
    assert found[0] == found[1] and len(found[0][0]["losses"]) == 12


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("form", "restarts"), [("at-one-store", 3), ("as-documented", 3), ("at-one-store", 0)])
def test_restarts_that_would_fail_are_warned_of_once(tmp_path: Path, form: str, restarts: int) -> None:
    printed = torchrun_prints(2, [SCRIPT, "save", tmp_path], **restarted(form, restarts))
    due = bool(restarts) and form != "as-documented"
    assert printed.count("`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone ...`") == due, printed
    assert printed.count("--max-restarts=3") == due, printed


@pytest.mark.now_and_then(8)
def test_the_reproduction_for_torch_meets_again_as_documented() -> None:
    """Without the variable it nearly always fails, which is for torch to mend."""
    printed = torchrun_prints(4, [ROOT / "docs" / "torchrun_restart.py"], **restarted("as-documented", 1))
    assert printed.count("all ranks have met") == 2, printed
