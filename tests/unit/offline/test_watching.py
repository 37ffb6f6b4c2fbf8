"""What the statuses of several ranks say together."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart._times import seconds_of
from deeppart.offline.watching import (
    DIED,
    ENDED,
    FAILED_JOB,
    RUNNING_JOB,
    SILENT,
    STALE_S,
    UNKNOWN,
    JobView,
    put_together,
)
from deeppart.storage import Owner
from deeppart.telemetry import RankStatus, Statuses
from tests.unit.telemetry.samples import SESSION, WRITTEN, in_flight, status

NOW_S = seconds_of(WRITTEN) + 2.0


def view(*ranks: RankStatus, running: bool | None = True, now_s: float = NOW_S) -> JobView:
    return put_together("ckpt", Owner(running, "job 4711", WRITTEN, SESSION), Statuses(ranks), now_s)


@pytest.mark.parametrize(
    ("running", "changes", "state", "good"),
    [
        (True, {}, RUNNING_JOB, True),
        (False, {"ended": WRITTEN}, ENDED, True),
        (False, {"ended": WRITTEN, "failed": True}, FAILED_JOB, False),
        (False, {}, DIED, False),
        (None, {}, UNKNOWN, False),
        (None, {"ended": WRITTEN}, ENDED, True),
        (True, None, SILENT, False),
        (False, None, DIED, False),
        (None, None, UNKNOWN, False),
    ],
)
def test_states(running: bool | None, changes: dict[str, Any] | None, state: str, good: bool) -> None:
    found = view(*([] if changes is None else [status(**changes)]), running=running)
    assert found.state == state and (found.reasons == ()) == good


def test_who_has_not_done_its_part_is_late() -> None:
    mine = in_flight(4, 9, persistent="running", local="done", stages=("local", "persistent"))
    theirs = in_flight(4, 9, persistent="running", local="done", stages=("local",))
    found = view(status(0, checkpoints=(mine,)), status(2, checkpoints=(theirs,)))
    levels = {level.name: level for level in found.checkpoints[0].levels}
    assert levels["persistent"].late == (2,) and levels["local"].late == () and levels["persistent"].state == "running"
    assert found.reasons == ("step 9: persistent: waiting for rank 2",)
    nobody = view(status(0, checkpoints=(theirs,)), status(2, checkpoints=(theirs,)))
    assert nobody.reasons == (), "all are at it"


def test_a_rank_that_does_not_write_though_it_should_is_stale() -> None:
    working = status(2, checkpoints=(in_flight(4, 9, persistent="running"),))
    assert view(working).stale == ()
    late = view(working, now_s=NOW_S + STALE_S)
    assert late.stale == (2,) and "stale: rank 2" in late.reasons[0]
    assert view(status(2), now_s=NOW_S + 1e6).stale == (), "between checkpoints there is nothing to write"
    assert view(working, running=False, now_s=NOW_S + 1e6).stale == (), "it is known to be gone"
