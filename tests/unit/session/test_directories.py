"""The directories of a session: guarded, and the same ones that rank 0 has told of."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.access import folders, node_place, persistent_rules
from deeppart.comm import SingleComm
from deeppart.errors import StorageError
from deeppart.model import Attempt
from deeppart.part import Signing
from deeppart.session.directories import guard_directories, open_levels, shared_directories
from deeppart.session.handshake import Handshake
from deeppart.session.topology import Topology
from deeppart.storage.lineage import read_lineage
from deeppart.storage.node import NODE_FOLDERS
from deeppart.storage.owner import DirectoryOwner
from tests.users import STRANGER, needs_root

pytestmark = pytest.mark.usefixtures("working_directory")

ONE = Topology(("n0",), (0,), ("",), ("",))


@pytest.fixture
def handshake(tmp_path: Path) -> Handshake:
    owner = DirectoryOwner(tmp_path / "ckpt", "me")
    owner.close()
    return Handshake(owner.lineage, owner.session, frozenset(), frozenset())


def open_them(handshake: Handshake, signing: Signing | None = None, **settings: Any) -> Any:
    config = deeppart.Config(persistent_dir="ckpt", **settings)
    return open_levels(0, config, ONE, handshake, signing, parity=False)


def test_both_directories_are_guarded_until_the_end(tmp_path: Path) -> None:
    held = guard_directories(deeppart.Config(permissions="group"), tmp_path / "ckpt", str(tmp_path / "local"))
    assert folders.rules_for(str(tmp_path / "ckpt" / "x")) == (str(tmp_path / "ckpt"), persistent_rules("group"))
    assert folders.rules_for(str(tmp_path / "local" / "x")) == (str(tmp_path / "local"), node_place("group"))
    held.release()
    assert folders.rules_for(str(tmp_path / "ckpt")) is folders.rules_for(str(tmp_path / "local")) is None


def test_without_a_local_directory_there_is_one(tmp_path: Path) -> None:
    held = guard_directories(deeppart.Config(), tmp_path / "ckpt", "")
    assert folders.rules_for(str(tmp_path)) is None and folders.rules_for(str(tmp_path / "ckpt")) is not None
    held.release()


def test_no_level_on_nodes_without_a_local_directory(handshake: Handshake) -> None:
    assert open_them(handshake) == ({}, {})


def test_all_levels_are_opened_with_what_earlier_runs_left(handshake: Handshake, tmp_path: Path) -> None:
    signing = Signing([b"k" * 64])
    levels, steps = open_them(handshake, signing, local_dir="local")
    assert set(levels) == set(NODE_FOLDERS) and steps == {name: set() for name in levels}
    earlier = Attempt(handshake.lineage, "e" * 32, 3, 70, 1)
    file = levels["partner"].open_part(earlier, 0)
    file.write(b"part")
    file.commit()
    # Also of levels that are off: what is there is to be retired some day.
    levels, steps = open_them(replace(handshake, session="f" * 32), signing, local_dir="local", every={"partner": 0})
    assert steps == {name: {earlier.key} if name == "partner" else set() for name in levels}
    assert all(level.root.is_relative_to(tmp_path / "local" / handshake.lineage) for level in levels.values())


def test_names_in_the_templates_are_of_this_rank(handshake: Handshake, tmp_path: Path) -> None:
    levels, _ = open_them(handshake, local_dir="local/{node}-{rank}")
    assert levels["local"].root.is_relative_to(tmp_path / "local" / "n0-0" / handshake.lineage)


def test_another_directory_than_that_of_rank_0_is_refused(handshake: Handshake, tmp_path: Path) -> None:
    """A path that leads elsewhere on this node."""
    other = DirectoryOwner(tmp_path / "other", "me")
    other.close()
    for found in (other.lineage, None):
        (tmp_path / "ckpt" / "deeppart.json").unlink()
        if found is not None:
            (tmp_path / "ckpt" / "deeppart.json").write_bytes((tmp_path / "other" / "deeppart.json").read_bytes())
        assert read_lineage(tmp_path / "ckpt") == found
        with pytest.raises(StorageError, match="not the same directory on every rank") as caught:
            open_them(handshake, local_dir="local")
        assert caught.value.found == f"lineage {found} in {tmp_path}/ckpt"
        assert handshake.lineage in str(caught.value.expected)
        assert caught.value.where == "rank 0 on n0"
    assert not (tmp_path / "local").exists(), "nothing is made on nodes before that is known"


def test_a_local_directory_that_cannot_be_made(handshake: Handshake, tmp_path: Path) -> None:
    (tmp_path / "local").write_text("a file")
    with pytest.raises(StorageError):
        open_them(handshake, local_dir="local")


@needs_root
def test_a_local_directory_of_somebody_else(handshake: Handshake, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    os.chown(tmp_path / "local", STRANGER, STRANGER)
    with pytest.raises(StorageError, match=str(STRANGER)):
        open_them(handshake, local_dir="local")


def test_one_node_shares_with_no_other(handshake: Handshake, tmp_path: Path) -> None:
    topology = replace(ONE, directories=(str(tmp_path / "local"),))
    config = deeppart.Config(persistent_dir="ckpt", local_dir="local")
    assert shared_directories(SingleComm(), config, topology, handshake, "starting") == ()
    assert not (tmp_path / "local").exists(), "no mark is left for nobody"
