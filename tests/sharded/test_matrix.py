"""From every layout into every other one, on 1 to 5 ranks: every byte, against what torch splits and gathers."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from tests.mpi.torchrun import torchrun
from tests.sampling import sampled
from tests.sharded.layouts import wrong
from tests.sharded.matrix_job import PAIRS, SOURCES

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def test_every_byte_comes_from_every_layout_to_every_other(tmp_path: Path) -> None:
    pairs = [" -> ".join(pair) for pair in sampled(PAIRS, 6, kind=lambda pair: pair[0])]
    found = torchrun(5, ["-m", "tests.sharded.matrix_job", str(tmp_path), ",".join(pairs)], tmp_path)
    assert found[0].keys() == set(pairs)
    assert [each for of_rank in found for each in of_rank.items() if each[1]] == []
    for layout, ranks, _ in SOURCES:
        assert wrong(deeppart.load(tmp_path / f"{layout}-{ranks}"), 2) == []
