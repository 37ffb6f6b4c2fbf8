"""What background threads tell each other."""

from __future__ import annotations

from deeppart.model import Attempt, StepKey
from deeppart.save.ledger import Ledger


def test_a_step_is_held_or_retired_never_both() -> None:
    ledger = Ledger()
    attempts = [Attempt("0" * 32, "1" * 32, sequence, step, 1) for sequence, step in enumerate((10, 20))]
    for attempt in attempts:
        ledger.completed(attempt)
    ten, twenty = (attempt.key for attempt in attempts)
    others = {StepKey(30, "1" * 32, 2), StepKey(20, "2" * 32, 1), StepKey(10)}
    ledger.hold(attempts[1])
    assert ledger.retire({ten, twenty, *others}) == {ten, *others}, "of another session, or the older layout of another"
    assert ledger.retire({StepKey(20)}) == set(), "in the older layout it may be this one's"
    assert list(ledger.complete().values()) == [attempts[1]]
    ledger.release(attempts[1])
    assert ledger.retire({twenty}) == {twenty} and not ledger.complete()
