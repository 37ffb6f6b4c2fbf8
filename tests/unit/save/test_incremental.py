"""Chunks that have not changed are referred to: less is written, every byte comes back, nothing that is needed goes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deeppart
from deeppart.codec import EncodedChunk
from deeppart.model import BaseRecord
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.part import ChunkPlace, parse_step_name
from deeppart.save.incremental import LEAST_LIVE, MOST_BASES, SPACE_FACTOR, Held, choose
from deeppart.state.capture.layout import ChunkPlan
from deeppart.storage import PosixStore, list_steps
from deeppart.storage.manifests import read_manifest
from tests.states import difference
from tests.storage_faults import StorageFaults
from tests.unit.cli_support import flip, invoke, step_dir

FROZEN, CHANGING = 6_000_000, 300_000


def state(step: int, frozen: int = FROZEN) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "frozen": torch.rand(frozen, generator=torch.Generator().manual_seed(99)),
        "adapter": torch.rand(CHANGING, generator=generator),
        "step": step,
    }


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"persistent_dir": str(directory / "ckpt"), "local_dir": str(directory / "local")}
    return deeppart.Config(**defaults | {"timeout": 20.0} | settings)


def save(checkpointer: deeppart.Checkpointer, *steps: int, frozen: int = FROZEN) -> deeppart.Report:
    for step in steps:
        pending = checkpointer.checkpoint(state(step, frozen), step)
        for level, report in pending.report.levels.items():
            if report.state != "off":
                pending.wait(level)
    return pending.report


def restored(settings: deeppart.Config) -> tuple[int | None, str | None, str]:
    live = state(0)
    with deeppart.Checkpointer(settings) as checkpointer:
        step = checkpointer.restore(live)
        return step, difference(state(step or 0), live), "\n".join(checkpointer.explanation)


def files(directory: Path) -> dict[int, list[Path]]:
    """Part files by step; a job that runs may be about to remove some."""
    found: dict[int, list[Path]] = {}
    for place, _, names in os.walk(directory):
        key = parse_step_name(Path(place).name)
        if key is not None:
            found[key.step] = sorted(Path(place, name) for name in names if name.endswith(".dpp"))
    return dict(sorted(found.items()))


def bases(directory: Path) -> dict[int, list[int]]:
    """By step, the steps to which it refers."""
    store = PosixStore(directory)
    found = {}
    for key in list_steps(store):
        with contextlib.suppress(deeppart.errors.MissingError):
            (part,) = read_manifest(store, key, None).parts
            found[key.step] = [base.step for base in part.bases]
    return found


def part(directory: Path, step: int) -> Path:
    (path,) = files(directory / "ckpt")[step]
    return path


def verdict(directory: Path, step: int) -> Any:
    return verify(choose_steps(directory / "ckpt", step)[0])


@pytest.mark.parametrize("compression", ["none", "tensor", "auto"])
def test_only_what_changes_is_written(tmp_path: Path, compression: str) -> None:
    settings = config(tmp_path, compression=compression)
    with deeppart.Checkpointer(settings) as checkpointer:
        whole = save(checkpointer, 1)
        report = save(checkpointer, 2, 3, 4)
        assert checkpointer.failures == 0
    found, before = report.levels["persistent"], whole.levels["persistent"]
    assert found.nbytes <= 1.1 * 4 * CHANGING + 10_000 < before.nbytes / 5
    assert found.nbytes + found.referenced_bytes >= 0.98 * before.nbytes
    assert report.levels["local"].nbytes >= 0.98 * whole.levels["local"].nbytes, "parts on nodes are whole"
    assert bases(tmp_path / "ckpt") == {2: [1], 3: [1], 4: [1]}, "the base is named where the bytes lie"
    assert list(files(tmp_path / "ckpt")) == [1, 2, 3, 4], "of step 1, which is retired, the part is left"
    assert restored(settings)[:2] == (4, None)
    assert difference(state(4), deeppart.load(tmp_path / "ckpt")) is None
    for step in (3, 4):
        assert verdict(tmp_path, step).state == "sound"
    shutil.rmtree(tmp_path / "local")
    newest, differs, explanation = restored(settings)
    assert (newest, differs) == (4, None) and "1 of 1 parts persistent" in explanation


def test_older_steps_may_be_pruned(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 0, "local": 0})
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2, 3)
    root = str(tmp_path / "ckpt")
    assert json.loads(invoke("prune", root, "--keep", "1", "--yes", "--json").output)["failed"] == []
    assert list(files(tmp_path / "ckpt")) == [1, 3], "the part of step 1 is left, since step 3 refers to it"
    assert [step["step"] for step in json.loads(invoke("ls", root, "--json").output)["steps"]] == [3]
    assert json.loads(invoke("verify", root, "--all", "--json").output)["good"] is True
    invoke("prune", root, "--incomplete", "--yes")
    assert verdict(tmp_path, 3).state == "sound"
    shutil.rmtree(tmp_path / "local")
    assert restored(settings)[:2] == (3, None)
    assert invoke("prune", root, "--before", "4", "--yes", "--allow-empty").exit_code == 0
    assert files(tmp_path / "ckpt") == {}


def test_a_step_that_is_removed_by_hand_takes_along_those_that_refer_to_it(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 0}, local_dir=None)
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2)
        shutil.rmtree(step_dir(tmp_path / "ckpt", 1))
        report = save(checkpointer, 3)
        assert checkpointer.failures == 0
    assert not report.levels["persistent"].referenced_bytes, "what is not there any more is not referred to"
    assert verdict(tmp_path, 3).state == "sound"
    (damage,) = verdict(tmp_path, 2).damage
    assert "earlier part that holds chunks of this one is missing" in damage.message
    key = parse_step_name(damage.file.split("/")[0])
    assert key is not None and key.step == 1
    with pytest.raises(deeppart.DeeppartError, match="step-000000000001-"):
        deeppart.load(tmp_path / "ckpt", 2)


def test_off(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path, incremental=False)) as checkpointer:
        report = save(checkpointer, 1, 2)
    assert report.levels["persistent"].nbytes > 3 * FROZEN and not any(bases(tmp_path / "ckpt").values())


def test_a_damaged_base_is_named_with_its_leaves_and_passed_over(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 0})
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2)
    base = part(tmp_path, 1)
    flip(base, 9_000_000)
    found = verdict(tmp_path, 2)
    assert found.state == "damaged" and found.damaged_leaves == ("frozen",)
    assert {damage.file for damage in found.damage} == {f"{base.parent.name}/{base.name}"}
    assert restored(settings)[:2] == (2, None), "the local part is sound"
    shutil.rmtree(tmp_path / "local")
    with pytest.raises(deeppart.RestoreError, match="digest of a chunk"):
        restored(settings)  # step 1 is the same file


@pytest.mark.parametrize("is_retired", [False, True])
def test_a_damaged_base_is_repaired_from_a_node(tmp_path: Path, is_retired: bool) -> None:
    """Also that of a step of which only this part is left: the steps that refer to it say what it has to be."""
    keep = {"persistent": 1 if is_retired else 0, "local": 0}
    with deeppart.Checkpointer(config(tmp_path, keep=keep, compression="none")) as checkpointer:
        save(checkpointer, 1, 2)
    base = part(tmp_path, 1)
    assert (base.parent / "manifest").exists() is not is_retired
    good = base.read_bytes()
    for damage in ("flipped", "gone"):
        if damage == "gone":
            base.unlink()
        else:
            flip(base, 9_000_000)
        alone = json.loads(invoke("verify", tmp_path / "ckpt", "--repair", "--json").output)
        assert not alone["good"] and base.parent.name in alone["repairs"][0]["path"]
        assert "no sound copy of part 0" in alone["repairs"][0]["problem"]
        local = ("--local", str(tmp_path / "local"))
        repaired = json.loads(invoke("verify", tmp_path / "ckpt", "--repair", *local, "--json").output)
        assert repaired["good"] and base.read_bytes() == good
        assert verdict(tmp_path, 2).state == "sound"


def test_a_step_that_fails_is_referred_to_by_none(tmp_path: Path) -> None:
    settings = config(tmp_path, status="none")  # which is written in between, if this takes long
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1)
        with StorageFaults(tmp_path / "ckpt") as faults:
            faults.refuse(0, errno.ENOSPC, count=None, only=("write",))
            pending = checkpointer.checkpoint(state(2), 2)
            with pytest.raises(deeppart.errors.CheckpointError):
                pending.wait("persistent")
            pending.wait("local")
        report = save(checkpointer, 3)
    assert report.levels["persistent"].referenced_bytes > 3 * FROZEN and bases(tmp_path / "ckpt")[3] == [1]


def test_a_chunk_that_is_two_steps_old_keeps_its_base(tmp_path: Path) -> None:
    """Part of what was frozen changes once: from then on there are two bases, until little is left of one."""
    settings = config(tmp_path, compression="none", every={"local": 0})
    parts = [torch.rand(1_500_000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    state = {"parts": parts, "step": 0}
    expected = {}
    with deeppart.Checkpointer(settings) as checkpointer:
        for step, changes in enumerate([(), (0, 1), (2,), (2,), (0, 1, 2, 3)]):
            for number in changes:
                parts[number] += 1
            state["step"] = step
            pending = checkpointer.checkpoint(state, step)
            pending.wait("persistent")
            expected[step] = sum(parts[number].nbytes for number in changes) if step else sum(p.nbytes for p in parts)
            nbytes = pending.report.levels["persistent"].nbytes
            assert expected[step] <= nbytes <= 1.01 * expected[step] + 5000, step
    found = bases(tmp_path / "ckpt")
    assert sorted(found[3]) == [0, 1] and found[4] == [0]
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None


class Adapted(torch.nn.Module):
    """Small layers, each with a small adapter: in the order of the state, they take turns."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = torch.nn.ModuleList()
        for _ in range(layers):
            layer = torch.nn.Linear(160, 160)
            layer.requires_grad_(requires_grad=False)
            self.weights += [layer, torch.nn.Linear(160, 4, bias=False)]


@pytest.mark.parametrize("all_in_the_optimizer", [False, True])
def test_small_leaves_that_are_trained_lie_in_chunks_of_their_own(tmp_path: Path, all_in_the_optimizer: bool) -> None:
    model = Adapted(60)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(model.parameters() if all_in_the_optimizer else trained, lr=0.1)
    ratios = []
    with deeppart.Checkpointer(config(tmp_path, compression="none", local_dir=None)) as checkpointer:
        for step in range(3):
            for parameter in trained:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            changed = 3 * sum(each.nbytes for each in trained)
            pending = checkpointer.checkpoint({"model": model, "optimizer": optimizer}, step)
            pending.wait("persistent")
            ratios.append(pending.report.levels["persistent"].nbytes / changed)
            tables = 60_000
            assert not step or pending.report.levels["persistent"].nbytes <= changed + tables
        state = deeppart.load(tmp_path / "ckpt")
    assert ratios[0] > 5
    assert difference(model, state["model"]) is None


def test_ls_show_and_verify_tell_of_references(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path, keep={"persistent": 0})) as checkpointer:
        save(checkpointer, 1, 2)
    root = str(tmp_path / "ckpt")
    listed = json.loads(invoke("ls", root, "--json").output)["steps"]
    assert [step["referenced_bytes"] > 3 * FROZEN for step in listed] == [False, True]
    assert listed[1]["nbytes"] < FROZEN < listed[0]["nbytes"]
    assert "unchanged in earlier steps" in invoke("show", root).output
    assert "unchanged" not in invoke("show", root, "--step", "1").output
    done = json.loads(invoke("verify", root, "--json").output)["steps"][0]
    assert done["state"] == "sound" and done["nbytes"] > 3 * FROZEN
    base = part(tmp_path, 1)
    base.unlink()
    listed = json.loads(invoke("ls", root, "--local", tmp_path / "local", "--json").output)["steps"][1]
    assert listed["state"] == "recoverable" and "refers to a part" in listed["reasons"][0]
    shutil.rmtree(tmp_path / "local")
    (damage,) = json.loads(invoke("verify", root, "--json").output)["steps"][0]["damage"]
    assert damage["file"] == f"{base.parent.name}/{base.name}" and damage["leaves"][0]["path"] == "frozen"
    assert "earlier part" in damage["message"]


def held(chunks: list[tuple[bytes, int, BaseRecord]]) -> Held:
    return {
        digest: (length, ChunkPlace(4096, EncodedChunk(0, b"", digest, digest), length, base))
        for digest, length, base in chunks
    }


@given(st.data())
def test_the_files_are_never_much_longer_than_what_is_needed(data: st.DataObject) -> None:
    records = [
        BaseRecord(f"{number:032x}", data.draw(st.integers(5000, 40_000)), number, number)
        for number in range(data.draw(st.integers(1, 12)))
    ]
    cuts, digests, there = [], [], []
    left = {record: record.nbytes - 4500 for record in records}
    start = 0
    for number in range(data.draw(st.integers(0, 60))):
        length, record = data.draw(st.integers(1, 2000)), data.draw(st.sampled_from([None, *records]))
        digest = number.to_bytes(16, "big")
        cuts.append(ChunkPlan(start, length, "float32", False))
        digests.append(digest)
        start += length
        if record is not None and left[record] >= length:
            left[record] -= length
            there.append((digest, length, record))
    found = choose(digests, cuts, held(there))
    known = {digest: (length, record) for digest, length, record in there}
    live: dict[BaseRecord, int] = {}
    for number, place in found.items():
        assert place.base is not None and known[digests[number]] == (cuts[number].length, place.base)
        live[place.base] = live.get(place.base, 0) + place.nbytes
    assert all(nbytes >= LEAST_LIVE * base.nbytes for base, nbytes in live.items()) and len(live) <= MOST_BASES
    if live:
        anew = start - sum(live.values())
        assert anew + sum(base.nbytes for base in live) <= SPACE_FACTOR * start
