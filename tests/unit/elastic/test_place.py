"""Places, and batches that hold from a step on."""

from __future__ import annotations

import json

from deeppart.elastic.place import Place, from_state, to_state
from deeppart.elastic.steps import Batch

OLD, NEW = Batch(10), Batch(25, 1)


def test_a_batch_that_was_decided_holds_from_its_step_on() -> None:
    place = Place(epoch=1, passes=2, seen=20, batch=OLD, later=((40, NEW),))
    assert [place.batch_at(seen) for seen in (20, 30, 40, 65)] == [OLD, OLD, NEW, NEW]
    assert place.at(30).later == ((40, NEW),) and place.at(30).batch == OLD
    assert place.at(40) == Place(1, 2, 40, NEW)
    assert place.next_pass(3, 0) == Place(3, 0, 0, NEW)


def test_what_was_decided_for_an_earlier_step_stays() -> None:
    place = Place(0, 0, 20, OLD).decided(40, NEW).decided(65, Batch(7))
    assert [place.batch_at(seen) for seen in (30, 40, 65)] == [OLD, NEW, Batch(7)]
    assert place.at(40).later == ((65, Batch(7)),) and place.at(70) == Place(0, 0, 70, Batch(7))
    assert place.decided(40, Batch(8)).later == ((40, Batch(8)),)  # the later one had been decided from there on
    assert place.next_pass(1, 0).batch == Batch(7)


def test_states_are_small_values_and_come_back() -> None:
    two = Place(1, 2, 20, OLD, ((40, NEW), (65, OLD)))
    for place in (Place(1, 2, 20, OLD, ((40, NEW),)), two, Place(0, 0, 0, NEW)):
        state = json.loads(json.dumps(to_state(place, OLD, 7, 100, shuffle=True)))
        assert from_state(state, OLD, 100, shuffle=True, name="a") == (place, 7)
        assert from_state(state, Batch(6), 100, shuffle=True, name="a") == (
            Place(place.epoch, place.passes, place.seen, Batch(6)), 7,
        )  # fmt: skip
