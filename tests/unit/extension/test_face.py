"""The face for adapters: few names, each described; a step leaf by leaf; a process that saves by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deeppart
import deeppart.extension
from deeppart.errors import RestoreError
from deeppart.extension import Box, LeafType, Step

ROOT = Path(__file__).resolve().parents[3]


def test_few_names_and_each_is_described() -> None:
    names = deeppart.extension.__all__
    page = (ROOT / "docs/api/extension.md").read_text()
    assert len(names) <= 15
    assert all(f":: deeppart.extension.{name}\n" in page and getattr(deeppart.extension, name) for name in names)
    with pytest.raises(AttributeError, match="no attribute"):
        deeppart.extension.Saver  # noqa: B018


def test_a_step_of_a_session_and_of_a_directory(tmp_path: Path) -> None:
    weights = torch.arange(12.0).view(3, 4)
    state = {"w": weights, "row": weights[1], "pair": (1, torch.ones(2)), "n": [3, {"x": None}]}
    with deeppart.Checkpointer(persistent_dir=tmp_path, comm="self") as checkpointer:
        assert Step.of_session(checkpointer) is None and checkpointer.next_step() == 0
        checkpointer.checkpoint(state, 4).wait()
        assert checkpointer.next_step() == 5 and Step.newest(checkpointer) == 4
        of_session = Step.of_session(checkpointer)
    assert of_session is not None and Step.newest(tmp_path) == 4
    for step in (of_session, Step.of_directory(tmp_path, 4)):
        assert step.number == 4 and step.state["n"] == [3, {"x": None}]
        assert step.state["w"].shape == (3, 4) and step.state["row"].owner == step.state["w"].leaf
        assert step.state["row"].is_view and step.state["pair"].leaf is None
    column, half = torch.zeros(3, 1), torch.zeros(4, dtype=torch.float16)
    found = step.state
    step.read({found["w"].leaf: [(Box((0, 2), (3, 1)), column)], found["row"].leaf: [(Box((0,), (4,)), half)]})
    assert torch.equal(column, weights[:, 2:3]) and torch.equal(half, weights[1].half())
    with pytest.raises(RestoreError):
        Step.of_directory(tmp_path, 5)


def test_types_of_leaves() -> None:
    kind = LeafType.of(torch.zeros(2, 3, dtype=torch.bfloat16), "here")
    assert kind == LeafType.of_torch(torch.bfloat16, (2, 3), "here") and kind.torch_dtype is torch.bfloat16
    made = kind.new()
    assert isinstance(made, torch.Tensor) and made.shape == (2, 3)
    with pytest.raises(deeppart.errors.UnsupportedLeafError, match="here"):
        LeafType.of(torch.eye(2).to_sparse(), "here")
