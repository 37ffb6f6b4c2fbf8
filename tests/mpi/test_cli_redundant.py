"""The commands on what three real ranks wrote with copies and parity: restore --dry-run, verify --local, --repair."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

import deeppart
from deeppart.offline.inspect import repairing
from deeppart.part import FileSource, ParityReader, ParityWriter
from tests.copying import copy_as_original
from tests.mpi import launch
from tests.unit.cli_support import call, call_json, flip

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("cli_redundant")

NODES = ("node0", "node1", "node2")


def train(root: Path) -> int:
    config = deeppart.Config(
        persistent_dir=str(root / "ckpt"),
        local_dir=str(root / "{node}"),
        node_size=1,
        compression="none",
        every={"local": 1, "partner": 1, "parity": 1, "persistent": 2},
        parity_group=3,
    )
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2):
            state = {"w": torch.rand(300_000, generator=torch.Generator().manual_seed(step)), "step": step}
            pending = checkpointer.checkpoint(state, step=step)
            for level, report in pending.report.levels.items():
                if report.state != "off":
                    pending.wait(level, timeout=300)
        return checkpointer.rank


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := launch.unavailable():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("trained")
    assert launch.run_ranks(3, train, root).values == [0, 1, 2]
    return root


@pytest.fixture
def job(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage: step 1 is on the persistent level, step 2 only on the nodes."""
    return copy_as_original(trained, tmp_path / "job")


def nodes(job: Path) -> list[object]:
    return [argument for name in NODES for argument in ("--local", job / name)]


def find(job: Path, pattern: str) -> Path:
    (path,) = job.glob(pattern)
    return path


def levels(job: Path, code: int = 0) -> list[list[str]]:
    plan = call_json("restore", job / "ckpt", "--dry-run", *nodes(job), code=code)
    return [[source["level"] for source in part["sources"]] for part in plan["parts"]]


def test_a_restore_explained(job: Path) -> None:
    assert levels(job) == [["local", "partner", "parity"]] * 3
    text = call("restore", job / "ckpt", "--dry-run", *nodes(job))
    assert text.startswith("step 2: 3 of 3 parts local; saved by 3 ranks") and "could be recovered too: 1" in text
    shutil.rmtree(job / "node1")
    assert levels(job) == [["local"], ["partner", "parity"], ["local", "partner"]]
    text = call("restore", job / "ckpt", "--dry-run", *nodes(job))
    assert "2 of 3 parts local, 1 of 3 parts partner" in text
    assert "part 1" in text and "otherwise parity set of parts 0, 1, 2 (2 other parts and 2 shares of parity" in text
    shutil.rmtree(job / "node2")
    plan = call_json("restore", job / "ckpt", "--dry-run", *nodes(job))
    assert plan["step"] == 1 and [each["step"] for each in plan["rejected"]] == [2]
    assert "part 1 of 3: found on no node" in plan["rejected"][0]["reason"]
    assert [part["sources"][0]["level"] for part in plan["parts"]] == ["persistent"] * 3
    shutil.rmtree(find(job, "ckpt/step-000000000001-*"))
    text = call("restore", job / "ckpt", "--dry-run", *nodes(job), code=1)
    assert "step 2 cannot be recovered" in text and "no step can be recovered" in text


def test_a_restore_is_only_explained(job: Path) -> None:
    assert "--dry-run" in call("restore", job / "ckpt", code=2)
    assert call_json("restore", job / "ckpt", "--dry-run", "--step", 1)["step"] == 1
    assert call_json("restore", job / "ckpt", "--dry-run", "--ranks", 5)["parts"][2]["reader"] == 2
    assert call_json("restore", job / "ckpt", "--dry-run", "--step", 7, code=1)["step"] is None


@pytest.mark.timeout(90)
def test_on_the_nodes_themselves(job: Path) -> None:
    """One process per node, each looking at its own directory; the first of them at the persistent level, for all."""
    find(job, "ckpt/step-000000000001-*/part-00001-*").unlink()
    argv = [sys.executable, "-m", "deeppart.cli", "restore", str(job / "ckpt"), "--dry-run", "--local"]
    argv += [str(job / "node{rank}")]
    run = subprocess.run(
        [str(launch.find_mpiexec()), "-n", "3", *argv], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("step 2: 3 of 3 parts local") == 1
    assert run.stdout.count("step 1 cannot be recovered: part 1 on the persistent level is missing") == 0
    assert "could be recovered too" not in run.stdout


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
    assert [each["file"] for each in document["nodes"]["damage"]] == [str(path)] and document["repairs"] is None
    assert path.read_bytes() != sound, "verify only reads"
    document = call_json("verify", job / "ckpt", *nodes(job), "--repair")
    assert [(each["file"], each["repaired"]) for each in document["repairs"]] == [(str(path), True)]
    assert path.read_bytes() == sound
    assert call_json("verify", job / "ckpt", *nodes(job))["good"]


def test_parity_that_is_sound_and_of_other_bytes(job: Path) -> None:
    """A part that changed while it was encoded leaves such: all digests hold, and it would give nothing back."""
    path = find(job, "node1/*/parity/step-000000000002-*/parity-*")
    sound = path.read_bytes()
    with FileSource(path) as source:
        reader = ParityReader(source, where="")
        blocks = [np.empty(reader.stripes.length(0), dtype=np.uint8) for _ in range(reader.stripes.tolerate)]
        assert reader.stripes.rows == 1 and all(reader.read_block(0, j, block) for j, block in enumerate(blocks))
    blocks[0][100] ^= 1  # of a data block, too: with one block of parity it is their exclusive or
    digests = reader.digests[0].copy()
    digests[0, 0] = np.frombuffer(bytes(16), dtype=np.uint8)
    digests[0, -1] = np.frombuffer(xxhash.xxh3_128_digest(blocks[0].data), dtype=np.uint8)
    with path.open("wb") as file:
        writer = ParityWriter(file, reader.identity)
        writer.add_row(blocks, digests)
        writer.finish()
    with FileSource(path) as source:
        ParityReader(source, where="").verify()
    document = call_json("verify", job / "ckpt", *nodes(job), code=1)
    (damage,) = document["nodes"]["damage"]
    assert damage["file"] == str(path) and "parity of other bytes than part" in damage["message"]
    assert call_json("verify", job / "ckpt", "--local", job / "node1")["good"], "that part is not there to compare"
    call("verify", job / "ckpt", *nodes(job), "--repair")
    assert path.read_bytes() == sound


def test_a_part_that_changes_while_parity_of_it_is_repaired(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share, part = (
        find(job, f"node1/*/{name}")
        for name in ("parity/step-000000000002-*/parity-*", "step-000000000002-*/part-00001-*")
    )
    flip(share, 5000)
    before, encode = share.read_bytes(), repairing._encode_share

    def encoded(*arguments: Any) -> None:
        flip(part, 5000)
        encode(*arguments)

    monkeypatch.setattr(repairing, "_encode_share", encoded)
    document = call_json("verify", job / "ckpt", *nodes(job), "--repair", code=1)
    assert [each["repaired"] for each in document["repairs"]] == [False] and share.read_bytes() == before
    flip(part, 5000)
    monkeypatch.undo()
    assert call_json("verify", job / "ckpt", *nodes(job), "--repair")["good"]


def test_everything_that_two_of_three_nodes_hold(job: Path) -> None:
    """All damage at once; what was repaired helps with the rest."""
    paths = [find(job, pattern) for pattern, _ in DAMAGE.values()]
    sound = [path.read_bytes() for path in paths]
    for path in paths[:3]:
        flip(path, 5000)
    text = call("verify", job / "ckpt", *nodes(job), "--repair")
    assert text.count(": repaired from ") == 3 and "in use by" not in text
    assert [path.read_bytes() for path in paths] == sound


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
    assert {each["repaired"] for each in document["repairs"]} == {False}
    assert all("no sound copy of part 1" in each["problem"] for each in document["repairs"])
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
            pending = checkpointer.checkpoint({"w": weights, "step": step}, step=step)
            for level, report in pending.report.levels.items():
                if report.state != "off":
                    pending.wait(level, timeout=300)


@pytest.mark.timeout(90)
def test_a_node_is_repaired_to_what_its_parity_was_computed_of(tmp_path: Path) -> None:
    """Not to another encoding of the same bytes, which parity would not count: nothing would protect it any more."""
    if reason := launch.unavailable():
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
    assert not repair["repaired"] and "encoded in another way than copies and parity here" in repair["problem"]
    assert part.read_bytes() == sound[:9000]
    parity.write_bytes(share[:9000])
    part.write_bytes(sound)
    flip(part, 9000)  # its index still says which encoding it is
    document = call_json("verify", tmp_path / "ckpt", *nodes(tmp_path), "--repair", code=1)
    assert [each["repaired"] for each in document["repairs"]] == [False, False], "of two in a set, one can be lost"
    assert "sound copy of part 1" in document["repairs"][1]["problem"]
    parity.write_bytes(share)
    assert call_json("verify", tmp_path / "ckpt", *nodes(tmp_path), "--repair")["good"]
    assert part.read_bytes() == sound
    other = find(tmp_path, "ckpt/step-000000000002-*/part-00001-*")
    for path in (other, *other.parent.glob("base-00001-*")):  # what such a repair has left, before there was this rule
        shutil.copy(path, part.parent)
    document = call_json("verify", tmp_path / "ckpt", *nodes(tmp_path))
    (remark,) = document["nodes"]["remarks"]
    assert str(part) in remark and "its parity was computed, which does not protect it" in remark


def test_repair_refuses_while_a_job_is_running(job: Path) -> None:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(job / "ckpt"))):
        assert "a running job checkpoints" in call("verify", job / "ckpt", "--repair", code=2)


def test_what_could_not_be_read_is_not_sound(job: Path) -> None:
    """A mistyped or unmounted directory; a step directory that cannot be listed."""
    document = call_json("verify", job / "ckpt", "--local", job / "nodeX", code=1)
    assert not document["good"] and document["nodes"]["files"] == 0
    assert document["nodes"]["not_read"] == [f"{job / 'nodeX'}: No such file or directory"]
    (job / "empty").mkdir()
    document = call_json("verify", job / "ckpt", "--local", job / "empty")
    assert document["nodes"]["remarks"] == [f"{job / 'empty'}: no parts that belong to this checkpoint directory"]
    step = find(job, "node0/*/step-000000000002-*/part-*").parent
    step.rename(job / "elsewhere")
    step.write_text("what fsck made of it")
    for repair in ([], ["--repair"]):
        document = call_json("verify", job / "ckpt", *nodes(job), *repair, code=1)
        (line,) = document["nodes"]["not_read"]
        assert f"cannot list {step}" in line and document["nodes"]["damage"] == []
        assert "not read" in call("verify", job / "ckpt", *nodes(job), *repair, code=1)


def test_files_in_wrong_places_are_named(job: Path) -> None:
    part = find(job, "node0/*/step-000000000002-*/part-*")
    other = part.parent.parent / "step-000000000009"
    other.mkdir()
    shutil.copy(part, other / part.name)
    shutil.copytree(part.parent, part.parent.parent.parent / ("f" * 32) / part.parent.name)
    document = call_json("verify", job / "ckpt", *nodes(job))
    (remark,) = document["nodes"]["remarks"]
    assert "in the wrong place: by its contents it is part-00000-of-00003.dpp of step 2" in remark
    assert other.exists()
