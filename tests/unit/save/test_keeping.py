"""Which steps count for ``keep``: those that can be restored."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path

import pytest

import deeppart
from deeppart.model import StepKey
from deeppart.save.keeping import Keeping
from tests.unit.cli_support import steps_in
from tests.unit.commits import newest_key, step_directory
from tests.waiting import wait_until

PATIENCE_S = 200.0


@pytest.mark.parametrize("what", ["manifest", "part"])
def test_a_step_that_is_damaged_after_it_was_counted_counts_no_more(tmp_path: Path, what: str) -> None:
    """``keep = 3``: step 3 was sound when the first step of this session was committed, and not at the second."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 3}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    third = step_directory(tmp_path, newest_key(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.restore({"x": 0})
            checkpointer.checkpoint({"x": 4}, 4).wait(timeout=PATIENCE_S)
            wait_until(lambda: steps_in(tmp_path) == [2, 3, 4])
            if what == "part":
                (third / "part-00000-of-00001.dpp").unlink()
            else:
                (third / "manifest").write_bytes(b"damaged")
            checkpointer.checkpoint({"x": 5}, 5).wait(timeout=PATIENCE_S)
    assert steps_in(tmp_path) == [2, 3, 4, 5]
    told = [str(each.message) for each in caught if each.category is deeppart.errors.KeepNotice]
    assert len(told) == (what == "part")


def test_a_directory_that_is_away_when_steps_are_counted_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen is not taken for unfinished, and removed when the directory is back."""
    root, elsewhere = tmp_path / "here", tmp_path / "away"
    config = deeppart.Config(persistent_dir=str(root), keep={"persistent": 3}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint({"x": 1}, 1).wait(timeout=PATIENCE_S)
    count = Keeping.removable
    counted: list[int] = []
    is_back = threading.Event()

    def away(self: Keeping) -> set[StepKey]:
        counted.append(len(counted))
        if counted[-1]:
            return count(self)
        root.rename(elsewhere)
        try:
            return count(self)
        finally:
            elsewhere.rename(root)
            is_back.set()

    monkeypatch.setattr(Keeping, "removable", away)
    with warnings.catch_warnings(), deeppart.Checkpointer(config) as checkpointer:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        assert checkpointer.restore({"x": 0}) == 1
        for step in (2, 3):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
            assert is_back.wait(PATIENCE_S)  # steps are counted once one is complete, whoever waits for that
    assert len(counted) == 2 and steps_in(root) == [1, 2, 3]


@pytest.mark.parametrize("later", [0, 1])
def test_of_two_commits_of_one_step_all_take_the_later(
    tmp_path: Path, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after jobs that did not see each other, where locks do not hold; the first has made more checkpoints."""
    root, aside = tmp_path / "ckpt", tmp_path / "aside"
    config = deeppart.Config(persistent_dir=str(root))
    real, offset_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)
    aside.mkdir()
    for session in (0, 1):
        offset_s = 3600.0 * (session == later)
        with warnings.catch_warnings(), deeppart.Checkpointer(config) as checkpointer:
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            for step in range(4 + session, 6):
                checkpointer.checkpoint({"x": 100 * session + step}, step).wait(timeout=PATIENCE_S)
        newest = step_directory(root, newest_key(root))
        newest.rename(aside / newest.name)
    for directory in aside.iterdir():
        directory.rename(root / directory.name)
    assert steps_in(root) == [4, 5, 5]
    live = {"x": 0}
    with deeppart.Checkpointer(config) as checkpointer:
        assert checkpointer.restore(live) == 5
    assert live["x"] == deeppart.load(root)["x"] == 100 * later + 5
