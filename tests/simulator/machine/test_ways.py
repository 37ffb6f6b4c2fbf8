"""Ways to come back: which pieces each pays for, and that each spares what the one before pays."""

from __future__ import annotations

from itertools import pairwise

import pytest
from deeppart_simulator.campaign.failures import CLASSES
from deeppart_simulator.machine.record import PIECES, WAYS


def test_every_way_knows_every_class_of_failures() -> None:
    for way in WAYS.values():
        assert set(way.pays) == set(CLASSES) and way.words
        for kind in CLASSES:
            assert {"detect", "communicator", "first_step"} <= way.after({kind}) <= set(PIECES)


def test_each_way_pays_less_than_the_one_before() -> None:
    spared = [earlier.after({"node"}) - later.after({"node"}) for earlier, later in pairwise(WAYS.values())]
    assert spared == [{"requeue"}, {"replace"}, {"imports"}, {"relaunch"}]
    for earlier, later in pairwise(WAYS.values()):
        for kind in CLASSES:
            assert later.after({kind}) <= earlier.after({kind}), (earlier.name, later.name, kind)


@pytest.mark.parametrize("name", WAYS)
def test_what_is_lost_decides_what_is_paid(name: str) -> None:
    way = WAYS[name]
    assert way.after({"process"}) <= way.after({"node"}) == way.after({"group"})
    assert way.after({"system"}) == set(PIECES) - {"replace"}, "nothing is left, and all nodes come back"
    assert way.after({"process", "system"}) == way.after({"process"}) | way.after({"system"})
    assert "replace" not in way.after({"process"})
