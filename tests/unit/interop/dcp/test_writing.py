"""What is exported for DCP: torch's own readers take it for what dcp.save would have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import deeppart
from deeppart.errors import StateError
from deeppart.extension.export import export
from deeppart.interop import load
from deeppart.interop.dcp.writing import DcpWriter
from tests.states import difference
from tests.tensor_kinds import coo
from tests.unit.interop.making import saved, training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def converted(directory: Path) -> Any:
    dcp_to_torch_save(directory, directory.with_suffix(".pt"))
    return torch.load(directory.with_suffix(".pt"), weights_only=False)


def test_it_is_what_dcp_save_writes(tmp_path: Path) -> None:
    state = training() | {"mixed": [torch.ones(2), {"x": 5}], "in a tuple": (torch.arange(600_000), 1)}
    root = saved(tmp_path / "ckpt", state)
    done = export(root, tmp_path / "ours", DcpWriter())
    loaded = deeppart.load(root)
    dcp.save(loaded, checkpoint_id=tmp_path / "theirs")
    assert difference(converted(tmp_path / "theirs"), converted(tmp_path / "ours")) is None
    assert difference(load(tmp_path / "theirs"), load(tmp_path / "ours")) is None
    assert done.files == 2 and any("under each of their names" in remark for remark in done.remarks)
    live = {"model": {name: torch.zeros_like(x) for name, x in loaded["model"].items()}, "turned": torch.zeros(5, 6)}
    dcp.load(live, checkpoint_id=tmp_path / "ours")
    assert (
        difference({key: loaded[key] for key in live}, live | {"model": type(loaded["model"])(live["model"])}) is None
    )


def test_files_of_a_size(tmp_path: Path) -> None:
    state = {f"l{n}": torch.full((1000,), float(n)) for n in range(6)}
    done = export(saved(tmp_path / "ckpt", state), tmp_path / "out", DcpWriter(10_000))
    assert done.files == 4 and difference(state, load(tmp_path / "out"), ordered=False) is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".metadata", *(f"__0_{n}.distcp" for n in range(3))}
    export(tmp_path / "ckpt", tmp_path / "out", DcpWriter(), overwrite=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".metadata", "__0_0.distcp"}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"x": coo()}, "cannot save composite tensors"),
        ([torch.ones(1)], "can only save a dict"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "same name"),
        ({"x": np.array(["a"])}, "no dtype"),
    ],
)
def test_what_it_cannot_hold_is_named(tmp_path: Path, state: Any, says: str) -> None:
    root = saved(tmp_path / "ckpt", state)
    with pytest.raises(StateError, match=says):
        export(root, tmp_path / "out", DcpWriter())
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]
