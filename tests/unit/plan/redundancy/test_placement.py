"""Who sends which part to whom: copies and parity sets, worked out by hand."""

from __future__ import annotations

import pytest

from deeppart.plan.redundancy import (
    Copy,
    Member,
    Nodes,
    ParitySet,
    parity_sets,
    partner_copies,
)

# --- placement --------------------------------------------------------------------------------------------------------


def test_copies_with_other_numbers_of_ranks_per_node() -> None:
    """Node 1 has two ranks that receive three parts in turn."""
    nodes = Nodes.of([0, 0, 0, 1, 1])
    assert partner_copies(nodes) == (Copy(0, 0, 3), Copy(1, 1, 4), Copy(2, 2, 3), Copy(3, 3, 0), Copy(4, 4, 1))


def test_copies_of_parts_that_lie_elsewhere_than_at_a_save() -> None:
    """After a restore of five parts on two ranks."""
    nodes = Nodes.of([0, 1])
    held = [[(4, 0), (1, 0)], [(0, 1), (2, 1), (3, 1)]]
    copies = partner_copies(nodes, held)
    assert copies == (Copy(0, 1, 0), Copy(1, 0, 1), Copy(2, 1, 0), Copy(3, 1, 0), Copy(4, 0, 1))


def test_a_node_with_fewer_parts_takes_part_in_every_set() -> None:
    nodes = Nodes.of([0, 0, 0, 1, 2, 2])
    assert parity_sets(nodes, 3, 1) == (
        ParitySet((Member(0, 0), Member(3, 3), Member(4, 4)), 1),
        ParitySet((Member(1, 1), Member(3, None), Member(5, 5)), 1),
        ParitySet((Member(2, 2), Member(3, None), Member(4, None)), 1),
    )


def test_sets_of_parts_that_lie_elsewhere_than_at_a_save() -> None:
    """More parts than ranks: a rank stands in several sets."""
    nodes = Nodes.of([0, 1, 1])
    assert parity_sets(nodes, 2, 1, [[(3, 0), (0, 0)], [(2, 1)]]) == (
        ParitySet((Member(0, 3), Member(1, 2)), 1),
        ParitySet((Member(0, 0), Member(2, None)), 1),
    )
    assert parity_sets(nodes, 2, 1, [[], []]) == ()


def test_a_rank_knows_its_place() -> None:
    (only,) = parity_sets(Nodes.of([0, 1, 2]), 3, 2)
    assert [only.place_of(rank) for rank in range(3)] == [0, 1, 2] and only.tolerate == 2
    with pytest.raises(ValueError, match="rank 3"):
        only.place_of(3)


@pytest.mark.parametrize("tolerate", [-1, 0, 3, 4])
def test_impossible_tolerance(tolerate: int) -> None:
    with pytest.raises(ValueError, match="1 to 2 can be lost"):
        parity_sets(Nodes.of(range(3)), 3, tolerate)
