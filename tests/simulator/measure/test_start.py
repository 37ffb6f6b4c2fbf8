"""Real checkpoints under real MPI, started and read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from deeppart_simulator.measure.start import Directories, measure

from deeppart.cli.calibrate.saves import TIMEOUT_S
from deeppart.cli.calibrate.tasks import LOSE, RESTORE, SaveTask
from deeppart.errors import DeeppartError


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_real_checkpoints_are_measured(tmp_path: Path, ranks: int) -> None:
    saves = [
        SaveTask(1 << 20, 8, persistent=True, rounds=2, after=RESTORE),
        SaveTask(1 << 20, 4, local=False, persistent=True, rounds=2, capture="lazy"),
        SaveTask(1 << 20, 3, persistent=True, rounds=2, after=RESTORE, shards=ranks),
    ]
    dtypes = ("float32", "int64") if ranks == 2 else ()
    found = measure(ranks, saves, Directories(tmp_path, tmp_path), dtypes, sessions=ranks)
    assert len(found["saves"]) == len(saves)
    for measured in found["saves"]:
        assert {len(times) for times in measured.values()} == {2 * ranks}
        assert all(
            0 < blocked <= persistent
            for blocked, persistent in zip(measured["blocked"], measured["persistent"], strict=True)
        )
    assert min(found["saves"][0]["restore"]) > 0 and max(found["saves"][1]["local"]) == 0
    if ranks == 2:
        assert found["pieces"]["codec"]["float32"]["ratio"] < 0.9
        assert all(value > 0 for value in found["pieces"]["network"].values())
        assert found["pieces"]["serialize"] is None  # torch.save is a matter of one rank
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_a_rank_that_fails_ends_the_others_at_once(tmp_path: Path) -> None:
    """Rank 0 is to remove a node's files, and there is no such level; the other one would wait for it."""
    began = time.monotonic()
    with pytest.raises(DeeppartError, match="measuring failed"):
        measure(2, [SaveTask(1 << 16, 2, local=False, persistent=True, after=LOSE)], Directories(tmp_path, tmp_path))
    assert time.monotonic() - began < TIMEOUT_S / 3
    assert list(tmp_path.iterdir()) == []
