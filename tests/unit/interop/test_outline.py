"""The outline of a state: stand-ins of any size, and what torch would not read again."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import torch

from deeppart.interop.outline import EMPTY_BYTES, Outline, outline
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


def test_containers_stay_what_they_are(tmp_path: Path) -> None:
    ordered = OrderedDict([("w", torch.ones(1))])
    ordered._metadata = OrderedDict([("", {"version": 1})])  # type: ignore[attr-defined]
    found = made(tmp_path, {"o": ordered, "c": Counter("aab"), "t": ((1,), torch.Size([2])), "d": {(1, "x"): 2.5}})
    assert type(found.state["o"]) is OrderedDict and vars(found.state["o"])["_metadata"][""] == {"version": 1}
    assert found.state["c"] == Counter("aab") and type(found.state["c"]) is Counter
    assert found.state["t"] == ((1,), torch.Size([2])) and type(found.state["t"][1]) is torch.Size
    assert found.state["d"] == {(1, "x"): 2.5} and not found.remarks
