"""A signal to one of four ranks: all of them end after the same step, with a checkpoint and exit code 143."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deeppart
from tests.elastic.stop_job import WHEN
from tests.mpi.torchrun import torchrun_prints

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def test_ranks_end_together(tmp_path: Path) -> None:
    text = torchrun_prints(4, ["-m", "tests.elastic.stop_job", str(tmp_path)], expect_rc=1)
    assert "(exitcode: 143)" in " ".join(text.split()).replace("exitcode :", "exitcode:"), text
    for rank in range(4):
        each = json.loads((tmp_path / f"told-{rank}.json").read_text())
        later, at_once = [False] * 4 + [True] * 4, [False] * 3 + [True] + [False] * 2
        assert each["agreed"] == later + at_once
        assert each["last"] == WHEN + 1
    state = deeppart.load(tmp_path / "ckpt")
    assert state["weights"].tolist() == [WHEN + 1.0] * 3
