"""What goes wrong between ranks is a typed error on every rank, within the timeout; nothing committed is lost."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from tests.mpi.outcomes import LONG_S, config, outcome, world
from tests.storage_faults import StorageFaults
from tests.waiting import wait_until


def state() -> dict[str, Any]:
    return {"w": torch.arange(50_000, dtype=torch.float32), "n": 1}


def disagreements(comm: Any, directory: Path) -> dict[str, tuple[str, str, float]]:
    """One mistake after another on one checkpointer: none of them breaks it."""
    rank = comm.rank
    ck = deeppart.Checkpointer(config(directory), comm)
    good = state()
    ck.checkpoint(good, step=1).wait(timeout=LONG_S)
    met = {
        "steps": outcome(lambda: ck.checkpoint(good, step=10 + rank)),
        "structure": outcome(lambda: ck.checkpoint(good if rank != 1 else good | {"extra": torch.ones(3)}, step=2)),
        "value or array": outcome(lambda: ck.checkpoint(good if rank else good | {"n": torch.ones(3)}, step=2)),
        "unsupported": outcome(lambda: ck.checkpoint(good if rank != 1 else good | {"n": object()}, step=2)),
        "state_dict fails": outcome(lambda: ck.checkpoint(good if rank != 1 else good | {"n": Broken()}, step=2)),
        "exists": outcome(lambda: ck.checkpoint(good, step=1)),
        "restore differs": outcome(lambda: ck.restore(good if rank else {"w": torch.zeros(3), "n": 1})),
        "restore absent step": outcome(lambda: ck.restore(good, step=77)),
        "restored steps": outcome(lambda: ck.restore(good, step=1 + rank)),
        "restored step or none": outcome(lambda: ck.restore(good, step=1 if rank else None)),
        "per_rank": outcome(lambda: ck.restore(good, per_rank="drop" if rank else "strict")),
        "call": outcome(lambda: ck.restore(good) if rank else ck.checkpoint(good, step=3)),
        "prepared or saved": outcome(lambda: ck.prepare(good) if rank else ck.checkpoint(good, step=3)),
        "prepared or restored": outcome(lambda: ck.prepare(good) if rank else ck.restore(good)),
        "prepared structure": outcome(lambda: ck.prepare(good if rank != 1 else good | {"extra": torch.ones(3)})),
        "prepared": outcome(lambda: ck.prepare(good)),
        "good again": outcome(lambda: ck.checkpoint(good, step=2).wait(timeout=LONG_S)),
        "restored": outcome(lambda: ck.restore(good)),
    }
    ck.close()
    return met


class Broken:
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("the user's object is broken")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@pytest.mark.mpi(min_size=2)
def test_disagreements_are_errors_on_every_rank(run_on: Any, shared_path: Path) -> None:
    met = run_on(2, disagreements, shared_path)
    kinds = {name: (met[0][name][0], met[1][name][0]) for name in met[0]}
    assert kinds == {
        "steps": ("RanksDisagreeError",) * 2,
        "structure": ("StructureMismatchError",) * 2,
        "value or array": ("StructureMismatchError",) * 2,
        "unsupported": ("RemoteRankError", "UnsupportedLeafError"),
        "state_dict fails": ("RemoteRankError", "StateError"),
        "exists": ("StepExistsError",) * 2,
        "restore differs": ("LeafMismatchError", "RemoteRankError"),
        "restore absent step": ("RestoreError",) * 2,
        "restored steps": ("RanksDisagreeError",) * 2,
        "restored step or none": ("RanksDisagreeError",) * 2,
        "per_rank": ("RanksDisagreeError",) * 2,
        "call": ("RanksDisagreeError",) * 2,
        "prepared or saved": ("RanksDisagreeError",) * 2,
        "prepared or restored": ("RanksDisagreeError",) * 2,
        "prepared structure": ("StructureMismatchError",) * 2,
        "prepared": ("", ""),
        "good again": ("", ""),
        "restored": ("", ""),
    }
    for rank in (0, 1):
        texts = {name: text for name, (_, text, _) in met[rank].items()}
        assert "rank 0: checkpoint(step=10), rank 1: checkpoint(step=11)" in texts["steps"]
        assert "rank 1 has an array at extra" in texts["structure"]
        assert "n" in texts["value or array"]
        assert "path n" in texts["unsupported"] and "set" in texts["unsupported"]
        assert "the user's object is broken" in texts["state_dict fails"]
        assert "float32[3]" in texts["restore differs"] and "float32[50000]" in texts["restore differs"]
        assert "step 77" in texts["restore absent step"] and "recovered is 1" in texts["restore absent step"]
        assert "rank 0: restore(step=1, per_rank=strict), rank 1: restore(step=2" in texts["restored steps"]
        assert "rank 0: restore(step=None, per_rank=strict), rank 1: restore(step=1" in texts["restored step or none"]
        assert "rank 1: restore(step=None, per_rank=drop)" in texts["per_rank"]
        assert "rank 0: checkpoint(step=3), rank 1: restore(step=None" in texts["call"]
        assert texts["restored"] == "2"
    assert all(seconds < LONG_S for rank in met for _, _, seconds in rank.values())


def local_fills_up(comm: Any, directory: Path) -> dict[str, Any]:
    """Local storage of rank 1 fills up in the middle of a write; the persistent level still gets the step."""
    good = {"w": torch.arange(3_000_000, dtype=torch.float32)}
    settings = config(directory, local_dir=str(directory / "local"), timeout=LONG_S, keep={"persistent": 3})
    with deeppart.Checkpointer(settings, comm) as ck, StorageFaults(directory / "local") as faults:
        ck.checkpoint(good, step=1).wait(timeout=LONG_S)
        faults.refuse(1 if comm.rank == 1 else 1 << 60, errno.ENOSPC, count=None, only=("write", "pwrite"))
        good["w"] += 1
        pending = ck.checkpoint(good, step=2)
        local_error = outcome(lambda: pending.wait("local", timeout=LONG_S))
        persistent = outcome(lambda: pending.wait("persistent", timeout=LONG_S))
        good["w"] += 1
        unseen = ck.checkpoint(good, step=3)
        unseen.wait("persistent", timeout=LONG_S)
        wait_until(lambda: unseen.finished, LONG_S)
        faults.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after = outcome(lambda: ck.checkpoint(good, step=4).wait("local", timeout=LONG_S))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = {"w": torch.zeros(3_000_000)}
            restored = ck.restore(fresh, step=3)
        failures = ck.failures
    return {
        "local": local_error,
        "persistent": persistent,
        "after": after,
        "warned": [str(w.message) for w in caught],
        "failures": failures,
        "restored": (restored, bool(torch.equal(fresh["w"], good["w"]))),
    }


@pytest.mark.mpi(min_size=2)
def test_local_storage_full_in_the_middle_of_a_write(run_on: Any, shared_path: Path) -> None:
    """The first time ``wait`` tells of it, the second time a warning, on rank 0, and both are counted."""
    for rank, met in enumerate(run_on(2, local_fills_up, shared_path)):
        assert met["local"][0] == "CheckpointError"
        assert "rank 1" in met["local"][1] and "No space left" in met["local"][1]
        assert met["persistent"][0] == "" and met["after"][0] == ""
        assert met["restored"] == (3, True)
        told = [text for text in met["warned"] if "not complete at level 'local'" in text]
        assert ["step 3" in text and "rank 1" in text for text in told] == ([True] if rank == 0 else [])
        assert met["failures"] == 2


def launched_without_mpi(directory: Path) -> tuple[str, str, float]:
    world()  # MPI itself starts from the true size
    os.environ.update({name: "5" for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") if name in os.environ})
    return outcome(lambda: deeppart.Checkpointer(config(directory)))


def test_world_size_of_launcher_and_library_differ(run_ranks: Any, tmp_path: Path) -> None:
    met = run_ranks(2, launched_without_mpi, tmp_path).values
    assert {kind for kind, _, _ in met} == {"LaunchError"}
    assert "5 processes" in met[0][1] and "2" in met[0][1]


def useless_communicators(comm: Any) -> list[tuple[str, str, float]]:
    from mpi4py import MPI

    half = comm.Split(comm.rank % 2, comm.rank)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    found = [outcome(partial(deeppart.Checkpointer, config(Path()), each)) for each in (between, MPI.COMM_NULL)]
    between.Free()
    half.Free()
    return found


@pytest.mark.of_mpi
@pytest.mark.mpi(min_size=2)
def test_communicators_that_do_not_connect_the_ranks_of_a_job(run_on: Any) -> None:
    """With one rank on each side of an intercommunicator, each would be a job of its own."""
    for between, outside in run_on(2, useless_communicators):
        assert between[0] == outside[0] == "LaunchError"
        assert "an intercommunicator" in between[1] and "COMM_NULL" in outside[1]


def with_errors_for_warnings(comm: Any, directory: Path) -> tuple[list[str], list[int]]:
    """As with ``python -W error``: what rank 0 alone warns of, at a checkpoint and a restore. It calls again then."""
    said = []

    def outcome(call: Callable[[], Any]) -> str:
        try:
            call()
        except Warning as warning:
            call()
            return type(warning).__name__
        return "ok"

    settings = deeppart.Config(persistent_dir=str(directory), timeout=20.0, keep={"persistent": 0})
    alike = torch.zeros(50_000)
    with warnings.catch_warnings(), deeppart.Checkpointer(settings, comm) as ck:
        warnings.simplefilter("error")
        for step in range(1, 5):
            alike.add_(0)  # written to, and so compared in full
            if step == 3:
                alike[comm.rank] = 1
            state = {"own": comm.rank, "alike": alike, "step": step}
            said.append(outcome(partial(ck.checkpoint, state, step)))
        ck.checkpoint({"own": comm.rank, "alike": alike, "step": 5}, 5).wait(timeout=200)
        said.append(outcome(lambda: ck.restore({"own": 9, "alike": alike, "step": 0}, 2)))
        said.append(outcome(lambda: ck.checkpoint({"own": comm.rank, "alike": alike, "step": 6}, 6)))
        ck.checkpoint({"own": comm.rank, "alike": alike, "step": 7}, 7).wait(timeout=200)
    return said, sorted(step.step for step in list_directory(directory).steps if step.state == "complete")


@pytest.mark.mpi(min_size=4)
def test_a_warning_that_is_an_error_leaves_no_rank_waiting(run_on: Any, shared_path: Path) -> None:
    for rank, (said, complete) in enumerate(run_on(2, with_errors_for_warnings, shared_path)):
        told = ["ok", "PerRankNotice", "ok", "ReplicaDivergenceWarning", "ok", "DeeppartWarning"]
        assert said == (told if rank == 0 else ["ok"] * 6), "each is raised by the next checkpoint()"
        assert complete == [1, 2, 3, 4, 5, 6, 7], "those that a warning came from too"
