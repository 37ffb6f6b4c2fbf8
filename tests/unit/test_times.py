"""Points in time as records hold them, and clocks that are set back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import deeppart
from deeppart.storage.owner import CommitClock
from tests.unit.cli_support import steps_in

PATIENCE_S = 200.0


@pytest.mark.parametrize("hours", [-5.0, 0.0, 5.0])
def test_a_clock_that_is_set_between_runs_and_in_a_run(
    tmp_path: Path, hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says, this run's own steps stay, as many as `keep` says, and the next one goes on from the newest."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 4}, incremental=False)
    real, offset_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)
    for first in (1, 4, 7):
        with deeppart.Checkpointer(config) as checkpointer:
            live = {"x": 0}
            assert checkpointer.restore(live) == (first - 1 or None) and live["x"] == first - 1
            for step in range(first, first + 3):
                offset_s += hours * 3600
                checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
        kept = steps_in(tmp_path)
        assert kept[-3:] == [first, first + 1, first + 2] and len(kept) == min(4, first + 2)
        assert kept[0] == max(first - 1, 1), "the newest step of the run before"
        assert deeppart.load(tmp_path)["x"] == first + 2


@pytest.mark.parametrize("created", ["9999-12-31T23:59:59.999999Z", "2026-13-45T99:99:99.000000Z", ""])
def test_times_of_commits_grow_whatever_is_there(created: str) -> None:
    clock = CommitClock()
    first = clock.now()
    clock.saw(created)
    second, third = clock.now(), clock.now()
    assert first <= second <= third
    if created < first:
        assert second >= first and third > second
