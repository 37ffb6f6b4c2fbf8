"""Rank 0 takes the persistent directory and tells the others what is in it; no place that is none is taken."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import ConfigError, DirectoryInUseError, StorageError
from deeppart.model import StepKey
from deeppart.session.handshake import Handshake, take_persistent
from deeppart.storage import owner as owner_module
from deeppart.storage.owner import DirectoryOwner
from deeppart.testing.faults import StorageFaults
from tests.unit.commits import FIRST, SECOND, begun, commit, manifest_file


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_LOCK_PATIENCE_S", 0.05)


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def take(directory: Path) -> tuple[DirectoryOwner, Handshake]:
    owner, handshake = take_persistent(SingleComm(), config(directory), str(directory), ("starting", 20.0))
    assert owner is not None
    return owner, handshake


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [frozenset(), frozenset({StepKey(5)}), frozenset({StepKey(2**62, "f" * 32, 10**6), StepKey(0, "0" * 32, 0)})],
)
def test_it_comes_back_on_the_other_ranks_as_it_was(keys: frozenset[StepKey]) -> None:
    told = Handshake("a" * 32, "b" * 32, keys, keys | {StepKey(7)})
    assert Handshake.from_json(told.to_json()) == told


def test_a_new_directory_is_made_and_is_empty(tmp_path: Path) -> None:
    owner, handshake = take(tmp_path / "a" / "b")
    with_names = (owner.lineage, owner.session)
    owner.close()
    assert handshake == Handshake(*with_names, frozenset(), frozenset())
    again, later = take(tmp_path / "a" / "b")
    again.close()
    assert later.lineage == handshake.lineage and later.session != handshake.session


def test_what_is_committed_and_what_else_is_there(tmp_path: Path) -> None:
    good, damaged, left = commit(tmp_path, 1), commit(tmp_path, 2), begun(tmp_path, 3, SECOND, 4)
    manifest_file(tmp_path, damaged).write_bytes(b"")
    owner, handshake = take(tmp_path)
    owner.close()
    assert handshake.committed == {good, damaged}, "a manifest that is damaged keeps its step from being used again"
    assert handshake.steps == {good, damaged, left}
    assert good.session == FIRST


# --- starts that fail -------------------------------------------------------------------------------------------------


def test_another_job_is_in_it(tmp_path: Path) -> None:
    owner, _ = take(tmp_path)
    with pytest.raises(DirectoryInUseError):
        take(tmp_path)
    owner.check()
    owner.close()
    take(tmp_path)[0].close()


def test_what_fails_behind_the_lock_gives_it_back(tmp_path: Path) -> None:
    take(tmp_path)[0].close()
    commit(tmp_path, 1)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=("stat",), count=None)
        with pytest.raises(StorageError):
            take(tmp_path)
        assert faults.refused
    take(tmp_path)[0].close()


@pytest.mark.parametrize(("number", "named"), [("", ""), ("4711", "job 4711, ")])
def test_the_job_is_named_where_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, named: str
) -> None:
    for variable in ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", number)
    with deeppart.Checkpointer(config(tmp_path)):
        with pytest.raises(DirectoryInUseError) as caught:
            deeppart.Checkpointer(config(tmp_path))
    assert str(caught.value.found).startswith(f"owned by {named}process {os.getpid()} on ")


def test_a_job_does_not_begin_anew_inside_a_step(tmp_path: Path) -> None:
    saved = tmp_path / "ckpt"
    with deeppart.Checkpointer(config(saved)) as ck:
        ck.checkpoint({"a": torch.ones(3)}, 100).wait()
    (step,) = saved.glob("step-000000000100*")
    with pytest.raises(ConfigError, match="directory of one step") as caught:
        deeppart.Checkpointer(persistent_dir=str(step), timeout=30.0)
    assert f"persistent_dir={str(saved)!r}" in str(caught.value)


def test_a_place_of_anothers_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    key = commit(tmp_path / "ckpt", 5)
    step = manifest_file(tmp_path / "ckpt", key).parent
    before = sorted(path.name for path in step.iterdir())
    with pytest.raises(ConfigError, match="impossible persistent_dir") as caught:
        take(step)
    assert caught.value.found == str(step) and sorted(path.name for path in step.iterdir()) == before
    assert f"persistent_dir={str(tmp_path / 'ckpt')!r}" in str(caught.value.todo)
    with pytest.raises(StorageError):
        take(manifest_file(tmp_path / "ckpt", key))  # a file is no directory, whatever it is
