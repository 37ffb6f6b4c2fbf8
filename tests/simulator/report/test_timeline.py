"""The bars of a timeline are the checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.report.timeline import timeline
from deeppart_simulator.timing.stages import Protection, times_of

from tests.simulator.timing.jobs import MACHINE, STATE, job


def test_a_timeline_is_the_checkpoint() -> None:
    this = job(compression="tensor", protection=Protection(parity_group=4))
    times = times_of(this, STATE.shares(16, kappa=0))
    (group,) = timeline(this, times)
    assert group.words == "each node"
    done, ends = times.complete(), {bar.what: bar.end_s for bar in group.bars}
    assert ends["write"] == pytest.approx(done["local"]) and ends["exchange copies"] == pytest.approx(done["partner"])
    assert ends["exchange parity"] == pytest.approx(done["parity"])
    assert ends["flush"] == pytest.approx(done["persistent"]) and math.isclose(ends["copy"], times.blocked_s)


def test_a_lazy_call_ends_before_its_copies_begin() -> None:
    """A second for the guards of a rank's 4 tensors, then 0.2 s of copies, then 2 s until all is on the node."""
    machine = replace(MACHINE, memory=replace(MACHINE.memory, defer=0.25))
    this = job(capture="lazy", machine=machine)
    times = times_of(this, STATE.shares(16, kappa=0))
    (group,) = timeline(this, times)
    (copy,) = [bar for bar in group.bars if bar.what == "copy"]
    assert (copy.lane, copy.begin_s, copy.end_s) == ("store", times.blocked_s, pytest.approx(times.blocked_s + 0.2))
    assert max(bar.end_s for bar in group.bars if bar.what == "write") == pytest.approx(times.complete()["local"])
