"""Rank 0 takes the persistent directory and tells the others what is in it; no place that is none is taken."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.access import Rules
from deeppart.comm import SingleComm
from deeppart.errors import ConfigError, DeeppartWarning, DirectoryInUseError, ReducedProtectionWarning, StorageError
from deeppart.model import Attempt, StepKey
from deeppart.nodes import Protection, protect
from deeppart.part import Signing
from deeppart.plan.redundancy import Nodes
from deeppart.session.open import (
    open_levels,
    open_roots,
    take_persistent,
    tell_lineage,
    tell_protection,
)
from deeppart.session.topology import Topology
from deeppart.storage import owner as owner_module
from deeppart.storage.lineage import read_lineage
from deeppart.storage.node import NODE_FOLDERS
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.records import reduced_runs
from deeppart.testing.faults import StorageFaults
from tests.unit.commits import FIRST, SECOND, begun, commit, manifest_file

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_LOCK_PATIENCE_S", 0.05)


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def take(directory: Path) -> tuple[DirectoryOwner, set[StepKey], set[StepKey]]:
    """The owner, all steps, and those that are committed."""
    owner, lineage, session, steps, committed = take_persistent(
        SingleComm(), config(directory), directory, ("starting", 20.0)
    )
    assert owner is not None and (lineage, session) == (owner.lineage, owner.session)
    return owner, steps, committed


def test_what_is_committed_and_what_else_is_there(tmp_path: Path) -> None:
    good, damaged, left = commit(tmp_path, 1), commit(tmp_path, 2), begun(tmp_path, 3, SECOND, 4)
    manifest_file(tmp_path, damaged).write_bytes(b"")
    owner, steps, committed = take(tmp_path)
    owner.close()
    assert committed == {good, damaged}, "a manifest that is damaged keeps its step from being used again"
    assert steps == {good, damaged, left}
    assert good.session == FIRST


def test_what_fails_behind_the_lock_gives_it_back(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    take(root)[0].close()
    commit(root, 1)
    with StorageFaults(root) as faults:
        faults.refuse(0, errno.EIO, only=("stat",), count=None)
        with pytest.raises(StorageError):
            take(root)
        assert faults.refused
    take(root)[0].close()


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


ONE = Topology(("n0",), (0,), ("",), ("",))


@pytest.fixture
def identity(tmp_path: Path) -> tuple[str, str]:
    """Lineage and session."""
    owner = DirectoryOwner(tmp_path / "ckpt", "me")
    owner.close()
    return owner.lineage, owner.session


def open_them(identity: tuple[str, str], signing: Signing | None = None, **settings: Any) -> Any:
    config = deeppart.Config(persistent_dir="ckpt", **settings)
    persistent, local = open_roots(config, "n0", 0)
    return open_levels(0, ONE, identity, signing, persistent, local, parity=False)


def test_what_holds_in_both_directories_is_as_configured(tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir="ckpt", local_dir="{node}-{rank}", permissions="group")
    persistent, local = open_roots(config, "n0", 3)
    assert persistent.rules == Rules("group") and local is not None and local.rules == Rules("group", node=True)
    assert (persistent.path, local.path) == (tmp_path / "ckpt", tmp_path / "n0-3")
    assert open_roots(deeppart.Config(), "n0", 0)[1] is None


def test_all_levels_are_opened_with_what_earlier_runs_left(identity: tuple[str, str], tmp_path: Path) -> None:
    signing = Signing([b"k" * 64])
    levels, steps = open_them(identity, signing, local_dir="local")
    assert set(levels) == set(NODE_FOLDERS) and steps == {name: set() for name in levels}
    earlier = Attempt(identity[0], "e" * 32, 3, 70, 1)
    file = levels["partner"].open_part(earlier, 0)
    file.write(b"part")
    file.commit()
    # Also of levels that are off: what is there is to be retired some day.
    levels, steps = open_them((identity[0], "f" * 32), signing, local_dir="local", every={"partner": 0})
    assert steps == {name: {earlier.key} if name == "partner" else set() for name in levels}
    assert all(level.root.is_relative_to(tmp_path / "local" / identity[0]) for level in levels.values())


def test_another_directory_than_that_of_rank_0_is_refused(identity: tuple[str, str], tmp_path: Path) -> None:
    """A path that leads elsewhere on this node."""
    other = DirectoryOwner(tmp_path / "other", "me")
    other.close()
    for found in (other.lineage, None):
        (tmp_path / "ckpt" / "deeppart.json").unlink()
        if found is not None:
            (tmp_path / "ckpt" / "deeppart.json").write_bytes((tmp_path / "other" / "deeppart.json").read_bytes())
            (tmp_path / "ckpt" / ".deeppart.lock").unlink()
        assert read_lineage(tmp_path / "ckpt") == found
        with pytest.raises(StorageError, match="not the same directory on every rank") as caught:
            open_them(identity, local_dir="local")
        assert caught.value.found == f"lineage {found} in {tmp_path}/ckpt"
        assert identity[0] in str(caught.value.expected)
        assert caught.value.where == "rank 0 on n0"
    assert not (tmp_path / "local").exists(), "nothing is made on nodes before that is known"


THIRD = "3" * 32


def told(call: Callable[..., object], *arguments: Any) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [(each.category, str(each.message)) for each in caught]


def test_a_copied_directory_is_told_with_both_names(tmp_path: Path) -> None:
    original = DirectoryOwner(tmp_path / "a", "me")
    original.close()
    assert told(tell_lineage, tmp_path / "a", original) == []
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = DirectoryOwner(tmp_path / "b", "me")
    copy.close()
    ((category, text),) = told(tell_lineage, tmp_path / "b", copy)
    assert category is DeeppartWarning and text.startswith(f"{tmp_path / 'b'} is a copy of a checkpoint directory")
    assert (
        "There is nothing to do" in text
        and f"its lineage is {copy.lineage}. Parts" in text
        and f"below {original.lineage} are the original's and are not used. If" in text
    )
    again = DirectoryOwner(tmp_path / "b", "me")
    again.close()
    assert told(tell_lineage, tmp_path / "b", again) == [], "said once"


def test_a_record_that_was_copied_over_its_own(tmp_path: Path) -> None:
    owners = {name: DirectoryOwner(tmp_path / name, "me") for name in ("a", "b")}
    for owner in owners.values():
        owner.close()
    (tmp_path / "b" / "deeppart.json").unlink()
    shutil.copy(tmp_path / "a" / "deeppart.json", tmp_path / "b" / "deeppart.json")
    owner = DirectoryOwner(tmp_path / "b", "me")
    owner.close()
    ((_, text),) = told(tell_lineage, tmp_path / "b", owner)
    assert f"its lineage is {owners['b'].lineage}. Parts on nodes below {owners['a'].lineage} are" in text


def test_a_record_that_was_written_anew(tmp_path: Path) -> None:
    DirectoryOwner(tmp_path, "job 1").close()
    record = tmp_path / "deeppart.json"
    record.write_bytes(record.read_bytes().replace(b'"lineage"', b'"lineagd"'))
    owner = DirectoryOwner(tmp_path, "job 2")
    ((category, text),) = told(tell_lineage, tmp_path, owner)
    assert category is DeeppartWarning and str(record) in text and "'lineage'" in text
    assert owner.lineage in text
    owner.close()
    again = DirectoryOwner(tmp_path, "job 3")
    assert told(tell_lineage, tmp_path, again) == [] and again.lineage == owner.lineage
    again.close()


def protection(nodes: int) -> Protection:
    """What a job on so many nodes gets that asks for parity of four."""
    settings: dict[str, Any] = {"local_dir": "/l", "every": {"parity": 1, "partner": 0}}
    config = deeppart.Config(parity_group=4, parity_tolerate=2, **settings)
    return protect(config, Nodes.of(range(nodes)), tuple(f"n{node}" for node in range(nodes)), ())


def test_less_than_asked_for_is_told_every_time_and_noted(tmp_path: Path) -> None:
    for session in (FIRST, SECOND):
        ((category, text),) = told(tell_protection, tmp_path, session, protection(3))
        assert category is ReducedProtectionWarning
        assert text.startswith("less protection than asked for: parity_group = 4 and parity_tolerate = 2, but")
        assert "3 nodes" in text and "'strict'" in text and "ls" not in text
    assert [run.session for run in reduced_runs(tmp_path)] == [FIRST, SECOND]


def test_all_of_it_is_told_only_after_less(tmp_path: Path) -> None:
    assert told(tell_protection, tmp_path, FIRST, protection(4)) == [] and list(tmp_path.iterdir()) == []
    told(tell_protection, tmp_path, SECOND, protection(3))
    ((category, text),) = told(tell_protection, tmp_path, THIRD, protection(4))
    assert category is DeeppartWarning and "has all the protection that it asks for" in text
    assert told(tell_protection, tmp_path, FIRST, protection(4)) == []


def test_a_note_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOSPC, only=("write",))
        ((category, text),) = told(tell_protection, tmp_path, FIRST, protection(3))
    assert category is ReducedProtectionWarning and "(`deeppart ls` will not know: cannot write" in text
    assert list(tmp_path.iterdir()) == [] and told(tell_protection, tmp_path, FIRST, protection(4)) == []
