"""What background threads tell each other."""

from __future__ import annotations

from deeppart.ledger import Ledger
from deeppart.model import Attempt


def test_a_step_is_held_or_retired_never_both() -> None:
    ledger = Ledger()
    for sequence, step in enumerate((10, 20)):
        ledger.completed(Attempt("0" * 32, "1" * 32, sequence, step, 1))
    ledger.hold(20)
    assert ledger.retire({10, 20, 30}) == {10, 30}
    assert [attempt.step for attempt in ledger.complete().values()] == [20]
    ledger.release(20)
    assert ledger.retire({20}) == {20} and not ledger.complete()
