"""Chunks that have not changed are referred to: less is written, every byte comes back, nothing that is needed goes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import deeppart
from deeppart.codec import EncodedChunk
from deeppart.model import BaseRecord
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.part import ChunkPlace, parse_base_file_name
from deeppart.save.incremental import (
    LEAST_LIVE,
    MOST_BASES,
    SPACE_FACTOR,
    Holdings,
    choose,
)
from deeppart.state.capture.layout import ChunkPlan
from deeppart.storage import parse_step_name, take_stock
from deeppart.testing.faults import StorageFaults
from deeppart.testing.states import difference
from tests.unit.cli_support import flip, invoke, step_dir
from tests.unit.commits import retire

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
    """Part and base files by step; a job that runs may be about to remove some."""
    found: dict[int, list[Path]] = {}
    for place, _, names in os.walk(directory):
        key = parse_step_name(Path(place).name)
        if key is not None:
            found[key.step] = sorted(Path(place, name) for name in names if name.endswith(".dpp"))
    return found


def bases(directory: Path) -> list[Path]:
    return [path for paths in files(directory).values() for path in paths if parse_base_file_name(path.name)]


def verdict(directory: Path, step: int) -> Any:
    return verify(choose_steps(directory / "ckpt", step)[0])


@pytest.mark.parametrize("compression", ["none", "tensor", "auto"])
def test_only_what_changes_is_written(tmp_path: Path, compression: str) -> None:
    settings = config(tmp_path, compression=compression)
    with deeppart.Checkpointer(settings) as checkpointer:
        whole = save(checkpointer, 1)
        report = save(checkpointer, 2, 3, 4)
        assert checkpointer.failures == 0
    for level in ("local", "persistent"):
        found = report.levels[level]
        assert found.nbytes <= 1.1 * 4 * CHANGING + 10_000 < whole.levels[level].nbytes / 5
        assert found.nbytes + found.referenced_bytes >= 0.98 * whole.levels[level].nbytes
    # One base, that of step 1, under a name in every step that is left: they are one file.
    assert len({path.stat().st_ino for path in bases(tmp_path / "ckpt")}) == 1
    assert restored(settings)[:2] == (4, None)
    assert difference(state(4), deeppart.load(tmp_path / "ckpt")) is None
    for step in (3, 4):
        assert verdict(tmp_path, step).state == "sound"
    shutil.rmtree(tmp_path / "local")
    newest, differs, explanation = restored(settings)
    assert (newest, differs) == (4, None) and "1 of 1 parts persistent" in explanation


def test_older_steps_may_go_in_any_way(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 0, "local": 0})
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2, 3)
    retire(step_dir(tmp_path / "ckpt", 1))
    shutil.rmtree(step_dir(tmp_path / "ckpt", 2))
    assert verdict(tmp_path, 3).state == "sound"
    shutil.rmtree(tmp_path / "local")
    assert restored(settings)[:2] == (3, None)


def test_what_nobody_needs_any_more_is_given_back(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 1, "local": 1}, compression="none")
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2, 3)
        save(checkpointer, 4, 5, frozen=FROZEN // 2)  # another structure: all is new
        save(checkpointer, 6, frozen=FROZEN // 2)
    whole = 4 * (FROZEN // 2 + CHANGING)
    kept = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "ckpt").rglob("*.dpp")}
    assert list(files(tmp_path / "ckpt")) == [6]
    assert sum(kept.values()) < 1.2 * whole


def test_the_local_copy_is_not_written_over_while_it_is_needed(memory: Path, tmp_path: Path) -> None:
    """On a tmpfs, files of retired steps are written over by the next checkpoint: not those that are bases."""
    settings = config(tmp_path, local_dir=str(memory / "local"), every={"persistent": 0}, keep={"local": 1})
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1)
        (path,) = files(memory)[1]
        content = xxhash.xxh3_128_hexdigest(path.read_bytes())
        for step in range(2, 8):
            save(checkpointer, step)
            (base,) = (path for path in files(memory)[step] if parse_base_file_name(path.name))
            assert xxhash.xxh3_128_hexdigest(base.read_bytes()) == content
        live = state(0)
        assert checkpointer.restore(live) == 7
    assert difference(state(7), live) is None


def test_off(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path, incremental=False)) as checkpointer:
        report = save(checkpointer, 1, 2)
    assert report.levels["persistent"].nbytes > 3 * FROZEN and not bases(tmp_path)


def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    settings = config(tmp_path)
    with deeppart.Checkpointer(settings) as checkpointer:
        report = save(checkpointer, 1, 2)
        assert checkpointer.failures == 0
    assert report.levels["persistent"].nbytes > 3 * FROZEN and not bases(tmp_path)
    assert restored(settings)[:2] == (2, None)


@pytest.mark.parametrize(("local", "persistent"), [("none", "tensor"), ("auto", "auto")])
def test_the_levels_encode_in_their_own_ways(tmp_path: Path, local: str, persistent: str) -> None:
    """A local part with a base, of which the persistent one is no copy."""
    first, second = config(tmp_path, compression=local), config(tmp_path, compression=persistent)
    with deeppart.Checkpointer(first) as checkpointer:
        save(checkpointer, 1, 2)
        shutil.rmtree(step_dir(tmp_path / "ckpt", 2))  # the base of the persistent level, not of the local one
        report = save(checkpointer, 3)
        assert checkpointer.failures == 0
    assert report.levels["local"].referenced_bytes and not report.levels["persistent"].referenced_bytes
    for lost in (tmp_path / "nothing", tmp_path / "local"):
        shutil.rmtree(lost, ignore_errors=True)
        assert restored(second)[:2] == (3, None)


def test_a_damaged_base_is_named_with_its_leaves_and_passed_over(tmp_path: Path) -> None:
    settings = config(tmp_path, keep={"persistent": 0})
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1, 2)
    (base,) = bases(tmp_path / "ckpt")
    flip(base, 9_000_000)
    found = verdict(tmp_path, 2)
    assert found.state == "damaged" and found.damaged_leaves == ("frozen",)
    assert {damage.file for damage in found.damage} == {base.name}
    assert restored(settings)[:2] == (2, None), "the local part is sound"
    (local,) = bases(tmp_path / "local")
    local.unlink()
    stock = take_stock(tmp_path / "local", next((tmp_path / "local").iterdir()).name, None)
    assert not stock.parts and "base-00000" in "".join(stock.problems)
    with pytest.raises(deeppart.RestoreError, match="digest of a chunk"):
        restored(settings)  # step 1 on the persistent level is the same file
    base.unlink()
    assert "older file that holds chunks of the part is missing" in "".join(
        damage.message for damage in verdict(tmp_path, 2).damage
    )


@pytest.mark.parametrize("level", ["local", "persistent"])
def test_a_step_that_fails_leaves_no_names(tmp_path: Path, level: str) -> None:
    settings = config(tmp_path, status="none")  # which is written in between, if this takes long
    with deeppart.Checkpointer(settings) as checkpointer:
        save(checkpointer, 1)
        root = tmp_path / ("local" if level == "local" else "ckpt")
        with StorageFaults(root) as faults:
            faults.refuse(0, errno.ENOSPC, count=None, only=("write",))
            pending = checkpointer.checkpoint(state(2), 2)
            with pytest.raises(deeppart.errors.CheckpointError):
                pending.wait(level)
            pending.wait("persistent" if level == "local" else "local")
        assert not bases(root)
        report = save(checkpointer, 3)
    assert report.levels[level].referenced_bytes > 3 * FROZEN


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
    names = {directory: len(paths) - 1 for directory, paths in files(tmp_path / "ckpt").items()}
    assert names[3] == 2 and names[4] == 1
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
    assert "unchanged in older files" in invoke("show", root).output
    assert "unchanged" not in invoke("show", root, "--step", "1").output
    done = json.loads(invoke("verify", root, "--json").output)["steps"][0]
    assert done["state"] == "sound" and done["nbytes"] > 3 * FROZEN
    bases(tmp_path / "ckpt")[0].unlink()
    listed = json.loads(invoke("ls", root, "--local", tmp_path / "local", "--json").output)["steps"][1]
    assert listed["state"] == "recoverable" and "refers to a file" in listed["reasons"][0]
    shutil.rmtree(tmp_path / "local")
    (damage,) = json.loads(invoke("verify", root, "--json").output)["steps"][0]["damage"]
    assert damage["file"].startswith("base-00000-of-00001-") and damage["leaves"][0]["path"] == "frozen"
    assert "older file" in damage["message"]


def holdings_of(chunks: list[tuple[bytes, int, BaseRecord]]) -> Holdings:
    places = {
        digest: (length, ChunkPlace(4096, EncodedChunk(0, b"", digest, digest), length, base))
        for digest, length, base in chunks
    }
    return Holdings(Path("step"), 0, 1, BaseRecord("f" * 32, 1 << 30, 9), places)


@given(st.data())
def test_the_files_are_never_much_longer_than_what_is_needed(data: st.DataObject) -> None:
    records = [
        BaseRecord(f"{number:032x}", data.draw(st.integers(5000, 40_000)), number)
        for number in range(data.draw(st.integers(1, 12)))
    ]
    cuts, digests, held = [], [], []
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
            held.append((digest, length, record))
    allowed = data.draw(st.none() | st.frozensets(st.sampled_from([record.index_digest for record in records])))
    found = choose(digests, cuts, holdings_of(held), allowed)
    known = {digest: (length, record) for digest, length, record in held}
    live: dict[BaseRecord, int] = {}
    for number, place in found.items():
        assert place.base is not None and known[digests[number]] == (cuts[number].length, place.base)
        assert allowed is None or place.base.index_digest in allowed
        live[place.base] = live.get(place.base, 0) + place.nbytes
    assert all(nbytes >= LEAST_LIVE * base.nbytes for base, nbytes in live.items()) and len(live) <= MOST_BASES
    if live:
        anew = start - sum(live.values())
        assert anew + sum(base.nbytes for base in live) <= SPACE_FACTOR * start
