"""What ``print`` shows of the records that a user meets: a few lines with units, without levels that are off."""

from __future__ import annotations

from deeppart.errors import CheckpointError
from deeppart.partition import LeafSpec, partition
from deeppart.pending import FAILED, RUNNING, Pending

# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_the_handle_shows_its_report_and_keeps_its_repr() -> None:
    pending = Pending(7, frozenset({"local", "parity", "persistent"}))
    pending.note(raw_bytes=4000, blocked_s=0.5)
    pending.note_level("parity", RUNNING)
    pending.note_level("persistent", FAILED, error=CheckpointError("the disk is full"))
    after = pending.report.levels["persistent"].seconds
    assert after is not None
    assert str(pending) == str(pending.report)
    assert str(pending).splitlines()[:-1] == [
        "step 7: training blocked for 500 ms",
        "  share of this rank: 4 kB",
        "  local: waiting",
        "  parity: running",
    ]
    assert str(pending).endswith(": the disk is full")
    assert repr(pending) == ("<Pending step 7: local waiting, parity running, persistent failed; the disk is full>")
    assert len(pending.failures()) == 1, "a failure that was printed is still to be told"


# --- the partitioner --------------------------------------------------------------------------------------------------


def test_a_plan() -> None:
    plan = partition([LeafSpec("a", 3_000_000), LeafSpec("b", 1_000_000)], ranks=3, kappa=0)
    assert str(plan) == "4 MB on 3 ranks: 1.33 MB to 1.33 MB each, leaves that are split: 1"
    assert repr(plan) == "Plan(deeppart, 3 ranks, 4000000 bytes)"
