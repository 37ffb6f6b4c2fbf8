"""An error of no kind that anybody expected, on one rank: the others are told at once, and the job goes on.

No memory is the likely one. Each place is one after which the other ranks wait.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError
from deeppart.part import PartSummary
from deeppart.recovery import apply, inventory, matching, saved
from deeppart.recovery.parts import CheckedPart
from deeppart.save import Incremental, StagingLease, pipeline, protect, share_planning, workers, write
from deeppart.save.job import Opened
from deeppart.session import open as starting
from deeppart.storage import node
from deeppart.storage import owner as locking
from tests.mpi.on_nodes import LONG_S, wait_for_all
from tests.mpi.suspect_training import TIMEOUT_S, checkpointer

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]


def on_nodes(comm: Any, directory: Path, **settings: Any) -> AbstractContextManager[deeppart.Checkpointer]:
    """Each rank is a node of its own."""
    local = {"local_dir": str(directory / "local" / "{node}"), "node_size": 1}
    return checkpointer(comm, directory / "ckpt", **local, **settings)


def let_fail(
    patch: pytest.MonkeyPatch, owner: Any, name: str, here: bool, error: BaseException, times: int = 1
) -> list[int]:
    """Let a function fail the first times it is called ``here``; returns how often it may still fail."""
    real, left, one_by_one = getattr(owner, name), [times * here], threading.Lock()  # several threads may call it

    def fails(*args: Any, **settings: Any) -> Any:
        with one_by_one:
            if left[0]:
                left[0] -= 1
                raise error
        return real(*args, **settings)

    patch.setattr(owner, name, fails)
    return left


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(100_000.0) + step}


def errors_of(pending: deeppart.Pending, *levels: str) -> list[str]:
    """How these levels have ended: "" where one is complete."""
    found = []
    for level in levels:
        try:
            pending.wait(level, timeout=LONG_S)
            found.append("")
        except CheckpointError as error:
            found.append(str(error))
    return found


def saving(comm: Any, directory: Path, owner: Any, name: str, on_rank: int) -> tuple[dict[int, list[str]], float]:
    found, began = dict[int, list[str]](), time.monotonic()
    with on_nodes(comm, directory) as ck, pytest.MonkeyPatch.context() as patch:
        left = let_fail(patch, owner, name, comm.rank == on_rank, MemoryError("none left"))
        for step in (1, 2):
            levels = ("local", "persistent")
            ends = errors_of(ck.checkpoint(state(step), step), *levels)
            assert all("MemoryError: none left" in error for error in ends if error)
            found[step] = [level for level, error in zip(levels, ends, strict=True) if error]
        assert not left[0], "it was never called"
    return found, time.monotonic() - began


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("owner", "name", "on_rank", "expected"),
    [
        (write, "encode_manifest", 0, [["persistent"]]),
        (share_planning, "share_set", 1, [["local", "persistent"]]),
        (write.ShareWriter, "prepare", 1, [["local", "persistent"]]),
        (PartSummary, "record", 1, [["local"], ["persistent"]]),  # whichever of the two threads reports first
        (Incremental, "completed", 1, [[]]),
        (pipeline.Pipeline, "_write_local", 1, [["local"]]),
        (Opened, "__init__", 1, [["local", "persistent"]]),
        (StagingLease, "stored", 1, [["local"]]),
    ],
    ids=[
        "the manifest",
        "planning",
        "looking at the share",
        "the report",
        "remembering",
        "storing",
        "passing on",
        "giving back",
    ],
)
def test_a_checkpoint_fails_on_all_ranks_and_the_next_one_is_complete(
    run_on: Any, shared_path: Path, owner: Any, name: str, on_rank: int, expected: list[list[str]]
) -> None:
    """``expected``: the levels that fail at step 1, one list for each order in which the threads may come by."""
    (found, _), (elsewhere, _) = outcomes = run_on(2, saving, shared_path, owner, name, on_rank)
    assert found == elsewhere and found[1] in expected and found[2] == []
    assert all(took_s < TIMEOUT_S for _, took_s in outcomes)


STAGES = {
    "_capture": "_give_up_capturing",
    "_store": "_give_up_storing",
    "_flush": "_give_up_flushing",
    "_protect": "_give_up_protecting",
}


def in_a_stage(comm: Any, directory: Path, names: list[str], error: BaseException) -> tuple[list[str], str, float]:
    """How the levels of a checkpoint end where each of these fails once on rank 1, and what the next call says. The
    session after that saves all.
    """
    settings = {"capture": "lazy", "every": {"local": 1, "partner": 1, "persistent": 1}}
    refused, began = "", time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            let_fail(patch, pipeline.Pipeline, name, comm.rank == 1, error)
        with on_nodes(comm, directory, **settings) as ck:
            levels = errors_of(ck.checkpoint(state(1), 1), "local", "partner", "persistent")
            try:
                ck.checkpoint(state(2), 2).wait()
            except deeppart.DeeppartError as caught:
                refused = f"{type(caught).__name__}: {caught}"
    took_s = time.monotonic() - began
    with on_nodes(comm, directory, **settings) as ck:
        wait_for_all(ck.checkpoint(state(3), 3))
    return levels, refused, took_s


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_of_any_kind_in_a_stage_is_an_error_of_the_level_on_all_ranks(
    run_on: Any, shared_path: Path, stage: str
) -> None:
    for rank, (levels, refused, took_s) in enumerate(
        run_on(2, in_a_stage, shared_path, [stage], KeyboardInterrupt("broke"))
    ):
        # Where copies are exchanged, the rank can only be missed.
        text = "rank 1 cannot take part" if stage == "_protect" and rank == 0 else "KeyboardInterrupt: broke"
        assert any(text in level for level in levels), levels
        assert not refused and took_s < TIMEOUT_S


@pytest.mark.parametrize("stage", STAGES)
def test_a_thread_that_an_error_ends_on_one_rank_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, stage: str
) -> None:
    """Giving up fails, too. The rank says what has happened to it, and the others name it."""
    names = [stage, STAGES[stage]]
    for rank, (levels, refused, took_s) in enumerate(run_on(3, in_a_stage, shared_path, names, SystemExit("broke"))):
        text = "SystemExit: broke" if rank == 1 else "rank 1 cannot take part"
        assert any(text in level for level in levels), levels
        assert refused.startswith("CheckpointError: nothing is saved" if rank == 1 else "RemoteRankError")
        assert "SystemExit: broke" in refused and took_s < TIMEOUT_S


def opening(comm: Any, directory: Path, owner: Any, name: str, on_rank: int) -> tuple[str, float]:
    """The error's type, or the step that was restored."""
    with on_nodes(comm, directory) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
    comm.Barrier()
    live, began, outcome = state(0), time.monotonic(), ""
    with pytest.MonkeyPatch.context() as patch:
        left = let_fail(patch, owner, name, comm.rank == on_rank, ValueError("of whatever kind"))
        try:
            with on_nodes(comm, directory) as ck:
                outcome = f"step {ck.restore(live)}"
        except deeppart.DeeppartError as error:
            outcome = type(error).__name__
        assert not left[0], "it was never called"
    written = "step" in outcome or name == "put"  # which hands over what has been written
    assert torch.equal(live["w"], state(int(written))["w"])
    return outcome, time.monotonic() - began


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("owner", "name", "on_rank", "outcomes"),
    [
        (locking, "list_steps", 0, ["CheckpointError", "RemoteRankError"]),
        (starting, "NodeLevel", 1, ["RemoteRankError", "CheckpointError"]),
        (inventory, "read_steps", 0, ["step 1", "step 1"]),
        (inventory, "take_stock", 1, ["step 1", "step 1"]),
        (CheckedPart, "check", 1, ["step 1", "step 1"]),
        (matching, "find_targets", 1, ["RemoteRankError", "CheckpointError"]),
        (apply, "overlapping", 1, ["RemoteRankError", "CheckpointError"]),
        (apply, "put", 1, ["RemoteRankError", "CheckpointError"]),
        (saved, "decode_meta", 1, ["RemoteRankError", "CheckpointError"]),
        (saved, "saved_step", 1, ["RemoteRankError", "CheckpointError"]),
        (CheckedPart, "check", 0, ["step 1", "step 1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_restore_goes_another_way_or_fails_on_all_ranks(
    run_on: Any, shared_path: Path, owner: Any, name: str, on_rank: int, outcomes: list[str]
) -> None:
    found = run_on(2, opening, shared_path, owner, name, on_rank)
    assert [outcome for outcome, _ in found] == outcomes
    assert all(took_s < TIMEOUT_S for _, took_s in found)


def unread_once(comm: Any, directory: Path, name: str, error: Exception) -> tuple[str, int | None]:
    """What a restore ends in while one node cannot be listed or read, and what the next one restores."""
    alone = {"every": {"local": 1, "partner": 0, "parity": 0, "persistent": 0}}
    with on_nodes(comm, directory, **alone) as ck:
        ck.checkpoint(state(1), 1).wait("local", timeout=200)
    comm.Barrier()
    live, outcome = state(0), ""
    owner = inventory if name == "take_stock" else node
    with pytest.MonkeyPatch.context() as patch, on_nodes(comm, directory, **alone) as ck:
        left = let_fail(patch, owner, name, comm.rank == 1, error)
        try:
            ck.restore(live)
        except deeppart.RestoreError as refused:
            outcome = "the device is gone" if "the device is gone" in str(refused) else str(refused)
        assert not left[0], "it was never called"
        return outcome, ck.restore(live)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("take_stock", MemoryError("the device is gone")),
        ("list_steps", deeppart.errors.StorageError("cannot list a directory", found="the device is gone")),
        ("stored_part", deeppart.errors.StorageError("cannot read a file", found="the device is gone")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_not_taken_for_nothing(
    run_on: Any, shared_path: Path, name: str, error: Exception
) -> None:
    """Training would start over then, and its first checkpoint would take the place of the one that is there."""
    assert run_on(2, unread_once, shared_path, name, error) == [("the device is gone", 1)] * 2


def copying(comm: Any, directory: Path, name: str) -> tuple[list[str], float]:
    """How the partner level ends, step by step, where one rank cannot prepare the exchange at the first."""
    found, began = list[str](), time.monotonic()
    with on_nodes(comm, directory, every={"partner": 1, "persistent": 0}) as ck, pytest.MonkeyPatch.context() as patch:
        left = let_fail(patch, protect.Protector, name, comm.rank == 1, MemoryError("none left"))
        for step in (1, 2, 3):
            local, partner = errors_of(ck.checkpoint(state(step), step), "local", "partner")
            found.append(local or ("none left" if "MemoryError: none left" in partner else partner))
        assert not left[0], "it was never called"
    return found, time.monotonic() - began


def test_an_exchange_begins_on_all_ranks_or_on_none(run_on: Any, shared_path: Path) -> None:
    """Otherwise one rank's report would meet what another one sends to the exchange."""
    for found, took_s in run_on(2, copying, shared_path, "_copy"):
        assert found == ["none left", "", ""] and took_s < TIMEOUT_S


def one_round_behind(comm: Any, directory: Path) -> tuple[list[list[str]], int | None]:
    """Rank 1 has told that it reports on step 2, and then does not: what it says of step 3 is not for step 2."""
    with on_nodes(comm, directory) as ck, pytest.MonkeyPatch.context() as patch:
        ck.checkpoint(state(1), 1).wait()
        let_fail(patch, pipeline, "commit_round", comm.rank == 1, MemoryError("none left"))
        pendings = [ck.checkpoint(state(step), step) for step in (2, 3, 4)]
        failed = [list(filter(None, errors_of(pending, "local", "persistent"))) for pending in pendings]
    live = state(0)
    with on_nodes(comm, directory) as ck:
        step = ck.restore(live)
    assert step is not None and torch.equal(live["w"], state(step)["w"])
    return failed, step


def test_a_report_on_one_step_is_none_on_another(run_on: Any, shared_path: Path) -> None:
    (failed, step), *others = run_on(3, one_round_behind, shared_path)
    assert all(other[1] == step for other in others)
    for number, levels in enumerate(failed, start=2):  # whatever is called complete anywhere can be restored
        assert len(levels) == 2 or step >= number, (failed, step)


def without_threads(comm: Any, directory: Path) -> tuple[str, float, int | None]:
    """Rank 1 can start no more threads; then it can again."""
    outcome, began = "", time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        let_fail(patch, workers, "start_thread", comm.rank == 1, RuntimeError("can't start new thread"))
        try:
            with on_nodes(comm, directory) as ck:
                ck.checkpoint(state(1), 1).wait()
        except (deeppart.DeeppartError, RuntimeError) as error:
            outcome = str(error)
    took_s = time.monotonic() - began
    with on_nodes(comm, directory) as ck:
        ck.checkpoint(state(2), 2).wait()
        return outcome, took_s, ck.restore(state(0))


def test_a_rank_that_can_start_no_thread_is_not_waited_for(run_on: Any, shared_path: Path) -> None:
    for rank, (outcome, took_s, step) in enumerate(run_on(3, without_threads, shared_path)):
        # Over sockets it may be known first that it has left.
        said = ("new thread",) if rank == 1 else ("rank 1 cannot take part", "rank 1 has ended its session")
        assert any(each in outcome for each in said), outcome
        assert took_s < TIMEOUT_S and step == 2
