"""What ``print`` shows of a checkpoint: its report; units say how that looks."""

from __future__ import annotations

from deeppart.errors import CheckpointError
from deeppart.pending import FAILED, Pending


def test_the_handle_shows_its_report_and_a_failure_that_was_printed_is_still_to_be_told() -> None:
    pending = Pending(7, frozenset({"local", "persistent"}))
    pending.note_level("persistent", FAILED, error=CheckpointError("the disk is full"))
    assert str(pending) == str(pending.report) and str(pending).endswith(": the disk is full")
    assert len(pending.failures()) == 1
