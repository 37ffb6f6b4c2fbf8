"""Commands beside a running job: what it retires while they look is no damage, and what stays damaged is."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

import deeppart
from deeppart.storage import StoredStep, take_stock
from tests.unit.cli_support import call_json, forge, part_path, step_dir
from tests.unit.commits import retire


def before(monkeypatch: pytest.MonkeyPatch, name: str, *retired: Path) -> None:
    """Have a running job retire steps just before something is called for the first time."""
    module, _, attribute = name.rpartition(".")
    owner: Any = resolve_name(module)
    real = getattr(owner, attribute)
    waiting = list(retired)

    def late(*arguments: Any, **options: Any) -> Any:
        while waiting:
            retire(waiting.pop())
        return real(*arguments, **options)

    monkeypatch.setattr(owner, attribute, late)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Complete steps 1 and 2."""
    for step in (1, 2):
        forge(tmp_path, step)
    return tmp_path


@pytest.mark.parametrize("when", ["StoredStep.part_problem", "read_manifest"])
def test_ls(when: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, f"deeppart.storage.manifests.{when}", step_dir(root, 1))
    assert [(step["step"], step["state"]) for step in call_json("ls", root)["steps"]] == [(2, "complete")]


def test_ls_looks_for_newer_steps_where_it_found_some_retired(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise there may be nothing left, and it says that nothing can be restored."""
    real, retired = StoredStep.part_problem, [step_dir(root, 1), step_dir(root, 2)]

    def late(*arguments: Any) -> Any:
        if retired:
            forge(root, 3)
        while retired:
            retire(retired.pop())
        return real(*arguments)

    monkeypatch.setattr(StoredStep, "part_problem", late)
    assert [(step["step"], step["state"]) for step in call_json("ls", root)["steps"]] == [(3, "complete")]


def test_show_looks_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, "deeppart.offline.reading.structure_of", step_dir(root, 2))
    document = call_json("show", root)
    assert (document["step"], document["problems"]) == (1, [])


def test_verify_where_the_manifest_is_gone_before_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, "deeppart.storage.manifests.read_manifest", step_dir(root, 1))
    document = call_json("verify", root, "--all")
    assert [step["state"] for step in document["steps"]] == ["sound"] and document["good"] is True


def test_verify_where_a_part_is_gone_before_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, "deeppart.storage.manifests.StoredStep.open_part", step_dir(root, 1))
    document = call_json("verify", root, "--all")
    assert [step["state"] for step in document["steps"]] == ["removed", "sound"] and document["good"] is True


def on_a_node(base: Path) -> Path:
    """Two steps on the only node; the folder of their lineage."""
    with deeppart.Checkpointer(
        persistent_dir=str(base / "ckpt"), local_dir=str(base / "node"), keep={"local": 0}
    ) as checkpointer:
        for step in (1, 2):
            checkpointer.checkpoint({"w": torch.full((10,), float(step))}, step).wait(timeout=200)
    (lineage,) = (each for each in (base / "node").iterdir() if len(each.name) == 32)
    return lineage


def nodes(base: Path, code: int = 0) -> list[str]:
    document = call_json("verify", base / "ckpt", "--local", base / "node", code=code)["nodes"]
    return [each["message"] for each in document["damage"]]


MOMENTS = {
    "before a file is opened": "deeppart.storage.node.stored_part",
    "before all of it is read": "deeppart.offline.inspect.node_files.file_problem",
}


@pytest.mark.parametrize("when", MOMENTS)
def test_verify_local(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = on_a_node(tmp_path)
    before(monkeypatch, MOMENTS[when], step_dir(lineage, 1), step_dir(lineage, 2))
    assert nodes(tmp_path) == []
    before(monkeypatch, MOMENTS[when])
    assert call_json("ls", tmp_path / "ckpt", "--local", tmp_path / "node")["problems"] == []


def test_what_is_damaged_on_a_node_stays_damaged(tmp_path: Path) -> None:
    lineage = on_a_node(tmp_path)
    part_path(lineage, 1).write_bytes(b"x" * 9000)
    assert len(nodes(tmp_path, code=1)) == 1
    assert len(take_stock(tmp_path / "node", lineage.name, None).notes) == 1
