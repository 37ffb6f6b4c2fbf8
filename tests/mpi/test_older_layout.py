"""Directories of the older layout, `step-000000000003`, in use: commands, restores of every level, a job that goes on.

They are real ones: tests/golden/make_older_layout.py.
"""

from __future__ import annotations

import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.storage.steps import parse_step_directory_name
from tests.golden.make_older_layout import make_config, make_state
from tests.unit.cli_support import call, call_json

ARCHIVE = Path(__file__).parents[1] / "golden" / "older-layout.tar.xz"
JOB_S = 110

pytestmark = pytest.mark.timeout(130)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """``ckpt`` and ``nodes``, as the job left them after steps 2 and 3."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = ("frozen", "weights", "position")
    rest = [key for key in one if key not in tensors]
    return all(torch.equal(one[key], other[key]) for key in tensors) and [one[key] for key in rest] == [
        other[key] for key in rest
    ]


def files_of_the_older_layout(directory: Path) -> list[str]:
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (key := parse_step_directory_name(path.parent.name)) is not None and not key.session
    ]


def life(directory: Path, save: tuple[int, ...], step: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """Restore, and save some steps; what was restored, and how."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    state = make_state(9, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(make_config(str(directory), **options), comm) as checkpointer:
            restored = checkpointer.restore(state, step=step, per_rank="strict" if comm.size == 2 else "rank0")
            explanation = checkpointer.explanation
            assert restored is not None
            good = same(state, make_state(comm.rank if comm.size == 2 else 0, restored))
            for number in save:
                checkpointer.checkpoint(make_state(comm.rank, number), step=number).wait()
    return {"restored": restored, "good": good, "explanation": str(explanation)}


def local_options(directory: Path) -> list[object]:
    """All nodes' directories, for commands."""
    return [option for node in sorted((directory / "nodes").iterdir()) for option in ("--local", node)]


def test_the_commands_know_its_steps(directory: Path) -> None:
    root, local = directory / "ckpt", local_options(directory)
    assert [parse_step_directory_name(path.name).session for path in root.glob("step-*")] == ["", ""]  # type: ignore[union-attr]
    text = call("ls", root, *local)
    assert text.count("complete") >= 2 and "damaged" not in text
    call("verify", root)
    call("verify", root, *local)
    for step in (2, 3):
        assert call_json("show", root, "--step", step)
        assert same(deeppart.load(str(root), step=step), make_state(0, step))
    damaged = root / "step-000000000003" / "part-00001-of-00002.dpp"
    damaged.write_bytes(damaged.read_bytes()[:-700] + b"\0" * 700)
    assert "part-00001" in call("verify", root, code=1)


@pytest.mark.parametrize(
    ("lost", "source"),
    [
        ((), "2 of 2 parts local"),
        (("nodes/node1",), "1 of 2 parts partner"),
        (("nodes/node1", "nodes/node0/*/partner", "ckpt/step-*"), "rebuilt from parity"),
        (("nodes",), "2 of 2 parts persistent"),
    ],
)
def test_each_level_is_restored_from(lost: tuple[str, ...], source: str, directory: Path, run_ranks: Any) -> None:
    for pattern in lost:
        for path in directory.glob(pattern):
            shutil.rmtree(path)
    for found in run_ranks(2, life, directory, (), None, {}, timeout=JOB_S).values:
        assert found["restored"] == 3 and found["good"] and source in found["explanation"], found


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks_restore_it(ranks: int, directory: Path, run_ranks: Any) -> None:
    for found in run_ranks(ranks, life, directory, (), None, {"protection": "best"}, timeout=JOB_S).values:
        assert found["restored"] == 3 and found["good"], found


def test_a_job_goes_on_and_its_steps_take_their_place(directory: Path, run_ranks: Any) -> None:
    run_ranks(2, life, directory, (4,), None, {}, timeout=JOB_S)
    assert {Path(file).parts[0] for file in files_of_the_older_layout(directory / "ckpt")} <= {"step-000000000003"}
    call("verify", directory / "ckpt")
    found = run_ranks(2, life, directory, (5, 6), None, {}, timeout=JOB_S).values
    assert [each["restored"] for each in found] == [4, 4] and all(each["good"] for each in found)
    assert files_of_the_older_layout(directory) == [], "keep counts them as what they are: older"
    call("verify", directory / "ckpt", *local_options(directory))
    assert all(each["good"] for each in run_ranks(2, life, directory, (), None, {}, timeout=JOB_S).values)


def refused(directory: Path, step: int) -> str:
    """Save a step that is there."""
    from mpi4py import MPI

    state = make_state(9, 9)
    with deeppart.Checkpointer(make_config(str(directory)), MPI.COMM_WORLD) as checkpointer:
        checkpointer.restore(state, step=step - 1)
        with pytest.raises(deeppart.StepExistsError) as error:
            checkpointer.checkpoint(state, step=step)
    return str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_a_committed_step_is_not_saved_again(directory: Path, run_ranks: Any) -> None:
    root = directory / "ckpt"
    before = {name: (root / name).read_bytes() for name in files_of_the_older_layout(root)}
    assert all("step 3 is already" in text for text in run_ranks(2, refused, directory, 3, timeout=JOB_S).values)
    assert before and {name: (root / name).read_bytes() for name in files_of_the_older_layout(root)} == before


def test_a_step_that_was_not_committed_is_saved_anew(directory: Path, run_ranks: Any) -> None:
    shutil.rmtree(directory / "nodes")
    (directory / "ckpt" / "step-000000000003" / "manifest").unlink()
    found = run_ranks(2, life, directory, (3,), None, {}, timeout=JOB_S).values
    assert [each["restored"] for each in found] == [2, 2]
    assert len(list((directory / "ckpt").glob("step-000000000003-*/manifest"))) == 1
    newest = run_ranks(2, life, directory, (), None, {}, timeout=JOB_S).values
    assert [each["restored"] for each in newest] == [3, 3] and all(each["good"] for each in newest)


def test_prune_removes_them(directory: Path) -> None:
    call("prune", directory / "ckpt", "--keep", "1", "--yes")
    assert [path.name for path in (directory / "ckpt").glob("step-*")] == ["step-000000000003"]
    assert same(deeppart.load(str(directory / "ckpt")), make_state(0, 3))
