"""From every layout into every other one, on 1 to 5 ranks: every byte, against what torch splits and gathers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import deeppart
from tests.mpi.test_torchrun import told, torchrun_command
from tests.sharded.layouts import LAYOUTS, wrong

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

SOURCES = [("fsdp", 4), ("fsdp", 3), ("hsdp", 4), ("tp", 2), ("tp-dp", 4), ("replicated", 2), ("replicated", 1)]


@pytest.mark.parametrize(("layout", "ranks"), SOURCES, ids=[f"{name}-{ranks}" for name, ranks in SOURCES])
def test_every_byte_comes_to_every_layout(layout: str, ranks: int, tmp_path: Path) -> None:
    node_size = 1 if (layout, ranks) in (("fsdp", 4), ("tp-dp", 4)) else 8
    arguments = ["-m", "tests.sharded.matrix_job", layout, str(ranks), str(tmp_path), str(node_size)]
    found = told(5, [torchrun_command(5, arguments)], tmp_path, {})
    assert found[0].keys() == {f"{name} {count}" for name, counts in LAYOUTS.items() for count in counts}
    assert [each for of_rank in found for each in of_rank.items() if each[1]] == []
    loaded = deeppart.load(tmp_path / "ckpt")
    assert wrong(loaded, 2) == []
    assert "torch.distributed.tensor" in sys.modules  # layouts.py: what is loaded has no DTensor in it
