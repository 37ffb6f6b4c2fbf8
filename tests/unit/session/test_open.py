"""Rank 0 takes the persistent directory and tells the others what is in it; no place that is none is taken."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import ConfigError, ReducedProtectionWarning, StorageError
from deeppart.model import StepKey
from deeppart.nodes import Protection, protect
from deeppart.part import Signing
from deeppart.plan.redundancy import Nodes
from deeppart.session.open import open_levels, open_roots, take_persistent, warn_protection
from deeppart.session.topology import Topology
from deeppart.storage import DirectoryOwner, PosixStore, read_lineage
from tests.storage_faults import StorageFaults
from tests.unit.commits import commit, manifest_file

pytestmark = pytest.mark.usefixtures("working_directory", "impatient")


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def take(directory: Path) -> tuple[DirectoryOwner, set[StepKey], set[StepKey]]:
    """The owner, all steps, and those that are committed."""
    owner, lineage, session, steps, committed = take_persistent(
        SingleComm(), config(directory), directory, PosixStore(directory), None, ("starting", 20.0)
    )
    assert owner is not None and (lineage, session) == (owner.lineage, owner.session)
    return owner, steps, committed


def test_a_step_that_cannot_be_looked_at_stays_and_is_no_reason_not_to_start(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    keys = {commit(root, step) for step in (1, 2)}
    with StorageFaults(manifest_file(root, min(keys)).parent) as faults:
        faults.refuse(0, errno.EACCES, only=("stat",), count=None)
        owner, steps, committed = take(root)
        owner.close()
        assert faults.refused
    assert steps == committed == keys


def test_what_fails_behind_the_lock_gives_it_back(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    take(root)[0].close()
    commit(root, 1)
    with StorageFaults(root) as faults:
        faults.refuse(0, errno.EIO, only=("fsync",), count=None)
        with pytest.raises(StorageError):
            take(root)
        assert faults.refused
    take(root)[0].close()


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


def told(call: Callable[..., object], *arguments: Any) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [(each.category, str(each.message)) for each in caught]


def protection(nodes: int) -> Protection:
    """What a job on so many nodes gets that asks for parity of four."""
    settings: dict[str, Any] = {"local_dir": "/l", "every": {"parity": 1, "partner": 0}}
    config = deeppart.Config(parity_group=4, parity_tolerate=2, **settings)
    return protect(config, Nodes.of(range(nodes)), tuple(f"n{node}" for node in range(nodes)), ())


def test_less_than_asked_for_is_told() -> None:
    ((category, text),) = told(warn_protection, protection(3))
    assert category is ReducedProtectionWarning
    assert text.startswith("less protection than asked for: parity_group = 4 and parity_tolerate = 2, but")
    assert "3 nodes" in text and "'strict'" in text
    assert told(warn_protection, protection(4)) == []
