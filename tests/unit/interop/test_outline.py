"""What writers need of a state: stand-ins of any size, dtypes of torch, and what torch would not read again."""

from __future__ import annotations

import argparse
import enum
import io
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StateError, UnsupportedLeafError
from deeppart.interop.outline import EMPTY_BYTES, Outline, arrays_remark, outline, torch_dtype_name
from deeppart.offline.export import export
from deeppart.offline.export.beside import BesideFile
from deeppart.offline.export.reading import Content, Progress, Totals
from deeppart.testing.states import difference
from tests.tensor_kinds import coo
from tests.unit.interop.making import saved


class Outlines:
    form, is_directory = "none", False

    def write(self, content: Content, beside: BesideFile, told: Progress) -> Totals:
        self.made: Outline = outline(content)
        return content.totals(self.made.values, self.made.own_values)


def made(tmp_path: Path, state: Any, **options: Any) -> Outline:
    writer = Outlines()
    export(saved(tmp_path / "ckpt", state), tmp_path / "x", writer, **options)
    return writer.made


def test_nothing_is_read_but_what_tensors_are_made_of(tmp_path: Path) -> None:
    state = {"a": torch.ones(3, 4, dtype=torch.bfloat16), "s": coo(), "n": 5, "raw": b"", "l": [b"x", None]}
    found = made(tmp_path, state)
    assert found.state["a"].is_meta and found.state["a"].shape == (3, 4) and found.state["a"].dtype is torch.bfloat16
    assert not found.state["s"].is_meta and difference(coo(), found.state["s"]) is None
    assert found.state["raw"] is EMPTY_BYTES and found.state["l"] == [b"x", None]
    assert found.values == 4 and len(found.leaves) == 1 and "held in memory" in found.remarks[0]
    assert str(EMPTY_BYTES) == "b''"


class Schedule(enum.Enum):
    COSINE = "cosine"


@dataclass
class Settings:
    out: Path = Path("runs/1")
    schedule: Schedule = Schedule.COSINE
    weights: dict[str, Any] = field(default_factory=lambda: {"w": torch.ones(2)})


def test_objects_and_values_of_scripts_are_plain_data(tmp_path: Path) -> None:
    stream = io.BytesIO(b"log")
    state = {
        "settings": Settings(),
        "arguments": argparse.Namespace(rate=0.1, out=Path("x")),
        "space": SimpleNamespace(a=1),
        "losses": deque([1.0, 2.0], maxlen=4),
        "counts": defaultdict(list, {"a": [1]}),
        "seen": {1, 2},
        "frozen": frozenset({Schedule.COSINE}),
        "raw": bytearray(b"ab"),
        "stream": stream,
        "order": range(3),
    }
    found = made(tmp_path, state)
    settings = found.state.pop("settings")
    assert type(settings) is dict and settings.pop("weights")["w"].is_meta
    assert settings == {"out": "runs/1", "schedule": "cosine"}
    assert found.state == {
        "arguments": {"rate": 0.1, "out": "x"},
        "space": {"a": 1},
        "losses": [1.0, 2.0],
        "counts": {"a": [1]},
        "seen": {1, 2},
        "frozen": {"cosine"},
        "raw": bytearray(b"ab"),
        "stream": b"log",
        "order": "range(0, 3)",
    }
    assert [type(found.state[name]) for name in ("losses", "counts", "frozen")] == [list, dict, set]
    objects, members, texts = found.remarks
    assert "settings" in objects and "settings/schedule" in members and "settings/out" in texts


def test_a_registered_type_is_its_data(tmp_path: Path) -> None:
    class Meter:
        total = 3

    deeppart.register(Meter, lambda meter: {"total": meter.total}, lambda data: Meter(), name="outlined meter")
    assert made(tmp_path, {"meter": Meter()}).state == {"meter": {"total": 3}}


@pytest.mark.parametrize("state", [{"d": {Path("x"): 1}}, {"d": {Schedule.COSINE: 1}}, {"s": {frozenset({1})}}])
def test_what_has_no_plain_counterpart_is_named(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedLeafError, match=f"path {next(iter(state))}"):
        made(tmp_path, state)


def test_containers_stay_what_they_are(tmp_path: Path) -> None:
    ordered = OrderedDict([("w", torch.ones(1))])
    ordered._metadata = OrderedDict([("", {"version": 1})])  # type: ignore[attr-defined]
    found = made(tmp_path, {"o": ordered, "c": Counter("aab"), "t": ((1,), torch.Size([2])), "d": {(1, "x"): 2.5}})
    assert type(found.state["o"]) is OrderedDict and vars(found.state["o"])["_metadata"][""] == {"version": 1}
    assert found.state["c"] == Counter("aab") and type(found.state["c"]) is Counter
    assert found.state["t"] == ((1,), torch.Size([2])) and type(found.state["t"][1]) is torch.Size
    assert found.state["d"] == {(1, "x"): 2.5} and not found.remarks


class Looks:
    """A writer that looks at the content, and writes nothing."""

    form, is_directory = "none", False

    def write(self, content: Content, beside: BesideFile, told: Progress) -> Totals:
        paths = content.checkpoint.structure.array_paths()
        self.found: dict[str, Any] = {}
        for leaf in content.leaves:
            try:
                self.found[paths[leaf][0]] = getattr(torch, torch_dtype_name(content, leaf))
            except StateError as error:
                self.found[paths[leaf][0]] = error.where
        self.remark = arrays_remark(content)
        return content.totals(0, 0)


def test_dtypes_of_numpy(tmp_path: Path) -> None:
    kinds = ["?", "u1", "<u2", ">i4", "<i8", ">f2", "f8", "c8", ">c16", "g", "S3", "<U1", "<M8[s]"]
    state = {kind: np.zeros(2, dtype=kind) for kind in kinds} | {"torch": torch.ones(1, dtype=torch.bfloat16)}
    looks = Looks()
    export(saved(tmp_path / "ckpt", state), tmp_path / "x", looks)
    none = {kind: f"path {kind}" for kind in ("g", "S3", "<U1", "<M8[s]")}
    assert {kind: found for kind, found in looks.found.items() if isinstance(found, str)} == none
    assert looks.found[">i4"] is torch.int32 and looks.found[">c16"] is torch.complex128
    assert looks.found["torch"] is torch.bfloat16
    assert len(looks.remark) == 1 and "and 9 more" in looks.remark[0]
