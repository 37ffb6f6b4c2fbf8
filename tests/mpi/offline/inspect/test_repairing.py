"""The commands on what three real ranks wrote with copies and parity: explain, verify --local, --repair."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi import launch, launchers
from tests.mpi.offline.redundant import find, nodes
from tests.mpi.on_nodes import wait_for_all
from tests.unit.cli_support import call, call_json, flip

#: One worker runs all of these, so that what they share is made once; one that has nurseries (tests/conftest.py).
pytestmark = pytest.mark.xdist_group("ranks-1")


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "payload of a part": ("node0/*/step-000000000002-*/part-*", lambda path: flip(path, 5000)),
    "header of a part": ("node1/*/step-000000000002-*/part-*", lambda path: flip(path, 20)),
    "payload of a copy": ("node1/*/partner/step-000000000002-*/part-*", lambda path: flip(path, 5000)),
    "footer of a copy": (
        "node2/*/partner/step-000000000002-*/part-*",
        lambda path: flip(path, path.stat().st_size - 9),
    ),
    "payload of parity": ("node0/*/parity/step-000000000002-*/parity-*", lambda path: flip(path, 5000)),
    "index of parity": (
        "node2/*/parity/step-000000000002-*/parity-*",
        lambda path: flip(path, path.stat().st_size - 99),
    ),
    "a truncated part": ("node2/*/step-000000000002-*/part-*", lambda path: path.write_bytes(path.read_bytes()[:5000])),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_is_found_and_repaired(job: Path, name: str) -> None:
    pattern, damage = DAMAGE[name]
    path = find(job, pattern)
    sound = path.read_bytes()
    damage(path)
    document = call_json("verify", job / "ckpt", *nodes(job), code=1)
    assert [each["path"] for each in document["nodes"]["damage"]] == [str(path)] and document["repairs"] is None
    assert path.read_bytes() != sound, "verify only reads"
    if "parity" in name:
        (repair,) = call_json("verify", job / "ckpt", *nodes(job), "--repair", code=1)["repairs"]
        assert "parity is computed by jobs alone" in repair["problem"]
        return
    document = call_json("verify", job / "ckpt", *nodes(job), "--repair")
    assert [(each["path"], each["problem"] is None) for each in document["repairs"]] == [(str(path), True)]
    assert path.read_bytes() == sound
    assert call_json("verify", job / "ckpt", *nodes(job))["good"]


def test_the_persistent_level_is_repaired_from_nodes_and_the_other_way_round(job: Path) -> None:
    part = find(job, "ckpt/step-000000000001-*/part-00001-*")
    sound = part.read_bytes()
    flip(part, 6000)
    assert "not repaired" in call("verify", job / "ckpt", "--repair", code=1)
    assert part.read_bytes() != sound
    copies = job / "elsewhere" / find(job, "node1/*").name / part.parent.name
    copies.mkdir(parents=True)
    (copies / part.name).write_bytes(sound)
    text = call("verify", job / "ckpt", "--repair", "--local", job / "elsewhere")
    assert f"repaired from local {copies / part.name}" in text and part.read_bytes() == sound
    part.unlink()
    call("verify", job / "ckpt", "--repair", "--local", job / "elsewhere")
    assert part.read_bytes() == sound
    flip(copies / part.name, 6000)
    text = call("verify", job / "ckpt", "--repair", "--local", job / "elsewhere")
    assert f"repaired from persistent {part}" in text and (copies / part.name).read_bytes() == sound


def test_what_cannot_be_repaired_stays_as_it_is(job: Path) -> None:
    """Too much is damaged: said, and nothing is written over."""
    paths = [*job.glob("node*/*/**/part-00001-*"), *job.glob("node*/*/parity/*/parity-*")]
    for path in paths:
        flip(path, 5000)
    before = [path.read_bytes() for path in paths]
    document = call_json("verify", job / "ckpt", *nodes(job), "--repair", code=1)
    assert {each["problem"] is None for each in document["repairs"]} == {False}
    assert all(
        "no sound copy of part 1" in each["problem"] for each in document["repairs"] if each["path"].endswith(".dpp")
    )
    assert [path.read_bytes() for path in paths] == before


def train_incrementally(root: Path) -> None:
    """Step 2 is whole on the nodes, for parity, and refers to step 1 on the persistent level."""
    where: dict[str, Any] = {"persistent_dir": str(root / "ckpt"), "local_dir": str(root / "{node}"), "node_size": 1}
    every = {"local": 1, "partner": 0, "parity": 1, "persistent": 1}
    config = deeppart.Config(compression="none", every=every, parity_group=3, **where)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2):
            weights = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
            weights[:1000] = step
            wait_for_all(checkpointer.checkpoint({"w": weights, "step": step}, step=step))


@pytest.mark.timeout(90)
def test_a_node_is_repaired_to_what_its_parity_was_computed_of(tmp_path: Path) -> None:
    """Not to another encoding of the same bytes, which parity would not count: nothing would protect it any more."""
    if reason := launchers.unavailable():
        pytest.skip(reason)
    launch.run_ranks(3, train_incrementally, tmp_path)
    part, parity = (
        find(tmp_path, "node1/*/step-000000000002-*/part-*"),
        find(tmp_path, "node0/*/parity/step-000000000002-*/parity-*"),
    )
    sound, share = part.read_bytes(), parity.read_bytes()
    assert find(tmp_path, "ckpt/step-000000000002-*/part-00001-*").stat().st_size < len(sound) / 2
    part.write_bytes(sound[:9000])
    document = call_json("verify", tmp_path / "ckpt", "--local", tmp_path / "node1", "--repair", code=1)
    (repair,) = document["repairs"]
    assert repair["source"] is None and "encoded in another way than copies and parity here" in repair["problem"]
    assert part.read_bytes() == sound[:9000]
    parity.write_bytes(share[:9000])
    part.write_bytes(sound)
    flip(part, 9000)  # its index still says which encoding it is
    document = call_json("verify", tmp_path / "ckpt", *nodes(tmp_path), "--repair", code=1)
    assert [each["problem"] is None for each in document["repairs"]] == [False, False], (
        "of two in a set, one can be lost"
    )
    assert any("sound copy of part 1" in each["problem"] for each in document["repairs"])
    parity.write_bytes(share)
    assert call_json("verify", tmp_path / "ckpt", *nodes(tmp_path), "--repair")["good"]
    assert part.read_bytes() == sound
    other = find(tmp_path, "ckpt/step-000000000002-*/part-00001-*")
    shutil.copy(other, part.parent)
    document = call_json("verify", tmp_path / "ckpt", *nodes(tmp_path), code=1)
    assert "refers to other steps" in document["nodes"]["damage"][0]["message"]


def test_repair_refuses_while_a_job_is_running(job: Path) -> None:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(job / "ckpt"))):
        assert "a running job checkpoints" in call("verify", job / "ckpt", "--repair", code=2)
