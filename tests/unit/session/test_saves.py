"""Which levels a checkpoint goes to, steps that are saved again, and failures that are told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import BackgroundFailureWarning, LevelNotRunError, StepExistsError
from deeppart.testing.states import difference
from tests.unit.cli_support import block
from tests.unit.one_rank import config, local_steps, persistent_steps, state, states_of


def test_every_counts_checkpoints_per_level(memory: Path) -> None:
    settings = {"every": {"local": 2, "persistent": 3}, "keep": {"local": 0, "persistent": 0}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        pendings = [ck.checkpoint(state(step), step * 10) for step in range(8)]
        for pending in pendings:
            for level in ("local", "persistent"):
                try:
                    pending.wait(level, timeout=200)
                except LevelNotRunError:
                    assert states_of(pending)[level == "persistent"] == "off"
        live = state(99)
        assert ck.restore(live) == 60 and live["step"] == 6, "local and persistent"
    assert local_steps(memory) == [0, 20, 40, 60] and persistent_steps(memory) == [0, 30, 60]


@pytest.mark.parametrize("every", [{"persistent": 1}, {"local": 1, "persistent": 2}, "auto"])
def test_the_last_step_may_be_saved_again_by_force(memory: Path, every: Any) -> None:
    """At the end one does not know whether it was saved: by ``every``, or before the job was submitted again."""
    for last in (3, 3, 4):
        live = state(0)
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            restored = ck.restore(live)
            for step in range((restored or 0) + 1, last + 1):
                live = state(step)
                ck.checkpoint(live, step)
            live["x"] = live["x"] + 7
            ck.checkpoint(live, last, force=True)
        assert ck.failures == 0
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            again = state(0)
            assert ck.restore(again) == last and difference(live, again) is None
            for step, force in ((last, False), (last - 1, True)) if every == {"persistent": 1} else ():
                with pytest.raises(StepExistsError, match="start it again"):
                    ck.checkpoint(live, step, force=force)


def test_close_reports_what_failed_last(memory: Path) -> None:
    with pytest.warns(BackgroundFailureWarning, match="step 5 is not complete at level 'persistent'") as caught:
        with deeppart.Checkpointer(config(memory)) as ck:
            block(ck, memory / "p", 5)
            ck.checkpoint(state(5), step=5)
    assert len(caught) == 1 and ck.failures == 1
