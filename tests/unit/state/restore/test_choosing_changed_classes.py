"""Objects of classes that have got and lost fields since: what stays and what is left out is reported."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from deeppart.state.tree import objects as registry
from tests.unit.state.restore.test_choosing import report

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture
def ck(tmp_path: Path) -> Iterator[deeppart.Checkpointer]:
    with deeppart.Checkpointer(persistent_dir=tmp_path / "ckpt", timeout=30.0) as checkpointer:
        yield checkpointer


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("slots", [False, True])
def test_a_dataclass_that_has_got_and_lost_fields(ck: deeppart.Checkpointer, frozen: bool, slots: bool) -> None:
    def made(*names: str) -> Any:
        fields = [(name, Any, dataclasses.field(default=5)) for name in names]
        return dataclasses.make_dataclass("Settings", fields, frozen=frozen, slots=slots)

    old, new = made("rate", "weight", "gone"), made("rate", "weight", "momentum", "buffer")
    nested = {"inner": old(2, torch.full((2,), 2.0), 2)}
    ck.checkpoint({"s": old(1, torch.ones(2), nested)}, 1).wait(timeout=30)
    weight, buffer = torch.zeros(2), torch.full((3,), 7.0)
    live: dict[str, Any] = {"s": new(0, weight, 0.9, buffer)}
    before = live["s"]
    for how in ({}, {"on_missing": "keep"}, {"on_unexpected": "ignore"}):
        with pytest.raises(StructureMismatchError, match=r"gone|momentum"):
            ck.restore(live, **how)  # type: ignore[arg-type]
        assert live["s"] is before and before.rate == 0 and not weight.any()
    ck.restore(live, strict=False)
    found = live["s"]
    assert (found is before) is not frozen and type(found) is new
    assert found.rate == 1 and found.weight is weight and weight.tolist() == [1.0, 1.0]
    assert found.momentum == 0.9 and found.buffer is buffer and buffer.tolist() == [7.0] * 3
    assert not hasattr(found, "gone")
    assert set(report(ck).missing) == {"s/momentum", "s/buffer"}
    assert [path.split("/")[1] for path in report(ck).unexpected] == ["gone"]


def test_a_registered_type_whose_data_have_got_a_key(
    ck: deeppart.Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meter:
        def __init__(self, **data: Any) -> None:
            self.data = data

    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_name", {})
    put: Any = lambda meter, data: meter.data.update(data)  # noqa: E731
    deeppart.register(Meter, lambda meter: dict(meter.data), lambda data: Meter(**data), name="meter", into=put)
    ck.checkpoint({"m": Meter(total=torch.ones(2), old=1)}, 1).wait(timeout=30)
    live = {"m": Meter(total=torch.zeros(2), count=3)}
    with pytest.raises(StructureMismatchError, match="count"):
        ck.restore(live)
    ck.restore(live, strict=False)
    assert live["m"].data["total"].tolist() == [1.0, 1.0] and live["m"].data["count"] == 3
    assert "old" not in live["m"].data
    assert list(report(ck).missing) == ["m/count"] and list(report(ck).unexpected) == ["m/old"]


def test_namespaces_keep_what_they_have_got(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint({"args": argparse.Namespace(lr=0.1, old=1)}, 1).wait(timeout=30)
    live = {"args": argparse.Namespace(lr=0.5, new=2)}
    with pytest.raises(StructureMismatchError):
        ck.restore(live)
    ck.restore(live, strict=False)
    assert live["args"] == argparse.Namespace(lr=0.1, new=2)
