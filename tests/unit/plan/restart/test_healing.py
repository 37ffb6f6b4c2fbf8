"""What a restored step lacks of its protection: parts come home, copies to partners, parity where a share is gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from deeppart.model import Attempt, BaseRecord
from deeppart.plan.redundancy import Nodes
from deeppart.plan.restart import Candidate, Inventory, survey
from deeppart.plan.restart.healing import Encode, Healing, Transfer, Wish, Write, plan_healing
from tests.unit.plan.restart.records import attempt, committed, copied, inventory, parts_left, protected, share, shares

NODES = Nodes.of((0, 1, 2, 3))
STEP = attempt(1)


def candidate(found: Inventory) -> Candidate:
    return survey(found).candidates[0]


def wish(*, partner: bool = False, group: int = 0) -> Wish:
    return Wish(NODES, partner, group, 1)


def copies_of(of: Attempt, lost: Collection[int] = ()) -> list[list[object]]:
    """Per node, its part and the copy of the node before it; nothing on nodes that are lost."""
    return [
        [] if node in lost else [*parts_left(of)[node], copied(of, (node - 1) % of.world_size)] for node in range(4)
    ]


def heal(found: Inventory, wanted: Wish) -> Healing:
    return plan_healing(candidate(found), {part: part for part in range(4)}, (), wanted)


def test_where_all_is_there_nothing_is_done() -> None:
    assert not heal(inventory(*parts_left(STEP)), wish())
    whole = heal(inventory(*copies_of(STEP)), wish(partner=True))  # type: ignore[arg-type]
    assert not whole and whole.describe() == ""


def test_a_lost_node_gets_its_part_from_the_copy_and_the_copy_that_it_held() -> None:
    healing = heal(inventory(*copies_of(STEP, [1])), wish(partner=True))  # type: ignore[arg-type]
    path = copied(STEP, 1).path
    assert healing.moves == (Transfer(1, 2, 1, "local", path),)
    assert [(each.part, each.source, each.target) for each in healing.copies] == [(0, 0, 1)]
    assert healing.writes == () and healing.describe() == "1 part to its node, 1 copy"


def test_what_no_node_has_is_written_by_whoever_has_it_in_memory() -> None:
    found = inventory(*parts_left(STEP, [2]), commits=[committed(STEP)])
    healing = heal(found, wish(partner=True))
    assert healing.writes == (Write(2, 2),)
    assert Transfer(2, 2, 3, "partner", "") in healing.copies, "from the file that it has just written"


def test_a_part_without_a_source_is_left_alone() -> None:
    lost = candidate(inventory(*parts_left(STEP)))
    without = Candidate(lost.attempt, tuple(() if part == 3 else each for part, each in enumerate(lost.sources)))
    healing = plan_healing(without, {}, (), wish(group=4))
    assert not healing.writes and not healing.encodes, "a set with it cannot be encoded"


def test_parity_is_encoded_anew_where_a_share_is_gone() -> None:
    parts = parts_left(STEP)
    shares_there = [(node, share(STEP, node)) for node in range(4)]
    whole = candidate(protected(parts, shares(STEP)))
    missing = plan_healing(whole, {}, shares_there[1:], wish(group=4))
    (encode,) = missing.encodes
    assert isinstance(encode, Encode) and [member.part for member in encode.which.members] == [0, 1, 2, 3]
    assert encode.paths == tuple(mine.path for (mine,) in parts)
    assert missing.describe() == "1 parity set"


def test_on_fewer_nodes_parts_stay_where_they_are() -> None:
    two = Wish(Nodes.of((0, 1)), False, 0, 1)
    found = inventory([*parts_left(STEP)[0], *parts_left(STEP)[2]], [*parts_left(STEP)[1], *parts_left(STEP)[3]])
    assert not plan_healing(candidate(found), {}, (), two)


def test_parts_that_refer_to_earlier_steps_are_not_put_on_nodes_and_that_is_said() -> None:
    commit = committed(STEP)
    bases = (BaseRecord("b" * 32, 5000, 1, 0),)
    commit = replace(commit, parts=tuple(replace(each, bases=bases) for each in commit.parts))
    healing = heal(inventory(*parts_left(STEP, [2]), commits=[commit]), wish(partner=True, group=4))
    assert healing.writes == healing.encodes == () and healing.unprotected == (2,)
    assert [each.part for each in healing.copies] == [0, 1, 3], "those that are whole on a node"
    assert not heal(inventory(*parts_left(STEP), commits=[commit]), wish(group=4)).unprotected
