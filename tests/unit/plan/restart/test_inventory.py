"""What survives, as it travels between ranks."""

from __future__ import annotations

from deeppart.plan.restart import (
    StoredParity,
    StoredPart,
)
from tests.unit.plan.restart.records import attempt, share, stored


def test_parts_travel_as_json() -> None:
    import json

    part = stored(attempt(7, session="b", sequence=3), 2)
    assert StoredPart.from_json(json.loads(json.dumps(part.to_json()))) == part


def test_parity_travels_as_json() -> None:
    import json

    for parts in ((0, 1, 2, 3), (2, None, 1, None)):
        one = share(attempt(7, session="b", sequence=3), 2, parts=parts, tolerate=3)
        assert StoredParity.from_json(json.loads(json.dumps(one.to_json()))) == one
