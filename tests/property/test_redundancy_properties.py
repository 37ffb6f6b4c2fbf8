"""Any number of nodes, ranks on them and domains: nothing is left out, nothing counts twice, the load is even."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from deeppart.plan.redundancy import Nodes, Stripes, parity_groups, parity_sets, partner_copies, partner_nodes


@st.composite
def jobs(draw: st.DrawFn) -> Nodes:
    """Nodes with 1 to 4 ranks each, numbered in any order, in some domains or in none."""
    count = draw(st.integers(2, 20))
    node_of = [node for node in range(count) for _ in range(draw(st.integers(1, 4)))]
    names = draw(st.sampled_from(["a", "ab", "abc", "abcdefgh"]))
    domains = draw(st.just([]) | st.lists(st.sampled_from(names), min_size=count, max_size=count))
    return Nodes.of(draw(st.permutations(node_of)), domains)


@st.composite
def held_parts(draw: st.DrawFn, nodes: Nodes) -> list[list[tuple[int, int]]]:
    """Parts as they lie after a restore on another number of ranks: any, on any nodes, read by any rank there."""
    parts = draw(st.permutations(range(draw(st.integers(1, 30)))))
    held: list[list[tuple[int, int]]] = [[] for _ in range(len(nodes))]
    for part in parts:
        node = draw(st.integers(0, len(nodes) - 1))
        held[node].append((part, draw(st.sampled_from(nodes.ranks[node]))))
    return held


def own(nodes: Nodes) -> list[list[tuple[int, int]]]:
    return [[(rank, rank) for rank in ranks] for ranks in nodes.ranks]


def node_of(nodes: Nodes) -> dict[int, int]:
    return {rank: node for node, ranks in enumerate(nodes.ranks) for rank in ranks}


# --- topology ---------------------------------------------------------------------------------------------------------


@given(jobs())
def test_every_node_is_the_partner_of_one_other(nodes: Nodes) -> None:
    partners = partner_nodes(nodes)
    assert sorted(partners) == list(range(len(nodes)))
    assert all(partner != node for node, partner in enumerate(partners))


@given(jobs())
def test_partners_are_in_other_domains_as_far_as_that_is_possible(nodes: Nodes) -> None:
    """Of a domain with D of n nodes, at most n - D can have partners outside; with half of them or fewer, all can."""
    partners = partner_nodes(nodes)
    inside = sum(nodes.domains[node] == nodes.domains[partner] for node, partner in enumerate(partners))
    assert inside == max(0, 2 * max(Counter(nodes.domains).values()) - len(nodes))


@given(jobs(), st.data())
def test_groups_cover_all_nodes_once_and_are_alike(nodes: Nodes, data: st.DataObject) -> None:
    asked = data.draw(st.integers(2, len(nodes)))
    groups = parity_groups(nodes, asked)
    assert sorted(node for group in groups for node in group) == list(range(len(nodes)))
    sizes = [len(group) for group in groups]
    assert min(sizes) >= asked and max(sizes) - min(sizes) <= 1
    assert len(groups) == len(nodes) // asked, "no more nodes in a group than there must be"
    for domain, count in Counter(nodes.domains).items():
        dealt = [sum(nodes.domains[node] == domain for node in group) for group in groups]
        assert max(dealt) - min(dealt) <= 1, f"domain {domain} of {count} nodes: one group would lose more than others"


# --- placement --------------------------------------------------------------------------------------------------------


@given(jobs(), st.data())
def test_every_part_has_a_copy_on_its_partner(nodes: Nodes, data: st.DataObject) -> None:
    given_parts = data.draw(st.none() | held_parts(nodes))
    held, partners, where = given_parts or own(nodes), partner_nodes(nodes), node_of(nodes)
    copies = partner_copies(nodes, given_parts)
    expected = sorted((part, rank, node) for node, parts in enumerate(held) for part, rank in parts)
    assert [(copy.part, copy.source, where[copy.source]) for copy in copies] == expected
    assert all(where[copy.target] == partners[where[copy.source]] for copy in copies)
    received = Counter(copy.target for copy in copies)
    for ranks in nodes.ranks:
        counts = [received[rank] for rank in ranks]
        assert max(counts) - min(counts) <= 1, "the work of receiving is shared"


@given(jobs(), st.data())
def test_every_part_is_in_one_set_with_parts_of_other_nodes_only(nodes: Nodes, data: st.DataObject) -> None:
    asked = data.draw(st.integers(2, len(nodes)))
    tolerate = data.draw(st.integers(1, asked - 1))
    given_parts = data.draw(st.none() | held_parts(nodes))
    held, where = given_parts or own(nodes), node_of(nodes)
    groups = {frozenset(group): group for group in parity_groups(nodes, asked)}
    sets = parity_sets(nodes, asked, tolerate, given_parts)
    protected = sorted(
        (member.part, member.rank) for each in sets for member in each.members if member.part is not None
    )
    assert protected == sorted(entry for parts in held for entry in parts)
    of_group: Counter[frozenset[int]] = Counter()
    for each in sets:
        on = [where[member.rank] for member in each.members]
        assert tuple(on) == groups[frozenset(on)], "every node of a group has one place in each of its sets"
        assert each.tolerate == tolerate
        assert any(member.part is not None for member in each.members), "a set that protects nothing"
        of_group[frozenset(on)] += 1
    for group, members in groups.items():
        assert of_group[group] == max(len(held[node]) for node in members), "no more sets than there must be"


# --- stripes ----------------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> Stripes:
    members = draw(st.integers(2, 12) | st.integers(2, 255))
    tolerate = draw(st.integers(1, members - 1))
    block = 64 * draw(st.integers(1, 40))
    rows = draw(st.integers(0, 4))
    most = (members - tolerate) * block
    longest = rows * most + draw(st.integers(0, most) | st.sampled_from([0, 1, 63, 64, 65]))
    return Stripes(members, tolerate, block, longest)


@given(layouts())
def test_every_block_is_in_one_stripe_and_no_stripe_twice_on_a_member(stripes: Stripes) -> None:
    k, m, members = stripes.data_blocks, stripes.tolerate, stripes.members
    seen_data, seen_parity = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for stripe in range(members):
        sources = [stripes.source(stripe, i) for i in range(k)]
        keepers = [stripes.keeper(stripe, j) for j in range(m)]
        assert sorted(sources + keepers) == list(range(members))
        assert all(stripes.stripe_of(member, i) == stripe for i, member in enumerate(sources))
        assert all(stripes.kept_stripe(member, j) == stripe for j, member in enumerate(keepers))
        seen_data.update((member, i) for i, member in enumerate(sources))
        seen_parity.update((member, j) for j, member in enumerate(keepers))
    assert seen_data == Counter((member, i) for member in range(members) for i in range(k))
    assert seen_parity == Counter((member, j) for member in range(members) for j in range(m))


@given(layouts())
def test_blocks_cover_the_longest_part_and_parity_without_gap_or_overlap(stripes: Stripes) -> None:
    k, m = stripes.data_blocks, stripes.tolerate
    data_end = parity_end = 0
    for row in range(stripes.rows):
        length = stripes.length(row)
        assert 0 < length <= stripes.block_bytes and length % 64 == 0
        assert length == stripes.block_bytes or row == stripes.rows - 1
        for block in range(k):
            assert stripes.start(row, block) == data_end
            data_end += length
        for index in range(m):
            assert stripes.parity_start(row, index) == parity_end
            parity_end += length
    assert stripes.parity_bytes == parity_end
    assert stripes.longest_bytes <= data_end < stripes.longest_bytes + 64 * k


@given(layouts(), st.data())
def test_blocks_hold_all_bytes_of_shorter_parts_and_zeros_behind(stripes: Stripes, data: st.DataObject) -> None:
    part_bytes = data.draw(st.integers(0, stripes.longest_bytes))
    at = 0
    for row in range(stripes.rows):
        for block in range(stripes.data_blocks):
            filled = stripes.filled(row, block, part_bytes)
            assert filled == max(0, min(stripes.length(row), part_bytes - at)), "bytes without a gap, then zeros"
            at += stripes.length(row)
    assert at >= part_bytes
