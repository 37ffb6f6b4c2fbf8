"""Replicas of a shard that come to differ: found, told, saved for each rank, and never taken for one another."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from tests.mpi.torchrun import torchrun
from tests.sharded.divergence_job import BAD
from tests.sharded.layouts import HAS_TWO_DIMENSIONS, expected, tensors, wrong

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


@pytest.mark.now_and_then(2)
@pytest.mark.skipif(not HAS_TWO_DIMENSIONS, reason="this torch has no HSDP state_dict()")
def test_a_replica_with_other_bytes_is_found_and_kept_apart(tmp_path: Path) -> None:
    found = torchrun(4, ["-m", "tests.sharded.divergence_job", str(tmp_path)], tmp_path)
    warned = [text for text in found[0]["after"] if "have come to differ" in text]
    assert found[0]["before"] == [] and len(warned) == 1
    assert f"{BAD[1:]}: rank 0 holds other bytes than rank 2" in warned[0]
    for each in found:
        assert (each["step"], each["own"], each["others"]) == (4, True, [])
        assert each["untouched"] and each["of rank 0"] == [] and each["at 2"] == []
    assert {each["strict"][0] for each in found} <= {"PerRankError", "RemoteRankError"}
    assert any(BAD[1:] in each["strict"][1] for each in found)
    loaded = deeppart.load(tmp_path / "ckpt")
    assert wrong(loaded, 3) == []
    other = dict(tensors(deeppart.load(tmp_path / "ckpt", rank=2)))[BAD]
    whole = expected(BAD, other, 3)
    assert (other != whole).sum() == 1
