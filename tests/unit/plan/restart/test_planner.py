"""The restart planner: pure, so every case is a few records."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord
from deeppart.plan.redundancy import Copy, Nodes, ParitySet, parity_sets, partner_copies
from deeppart.plan.restart import (
    Candidate,
    Committed,
    Inventory,
    Location,
    Piece,
    Source,
    StoredParity,
    StoredPart,
    assign,
    explain,
    explain_parts,
    survey,
)

LINEAGE = "a" * 32


def attempt(step: int, *, ranks: int = 4, session: str = "1", sequence: int = 0) -> Attempt:
    return Attempt(LINEAGE, session * 32, sequence, step, ranks)


def digest(part: int, of: Attempt) -> str:
    return f"{part + 1:x}".rjust(8, of.session[0]) * 4


def stored(of: Attempt, part: int, *, path: str = "", nbytes: int = 1000, index_digest: str = "") -> StoredPart:
    path = path or f"/local/{of.session[0]}/{of.step}/{part}"
    return StoredPart("local", of, part, path, nbytes, index_digest or digest(part, of))


def committed(of: Attempt, *, nbytes: int = 1000) -> Committed:
    records = [
        PartRecord(part, f"part-{part}", nbytes, nbytes, "0" * 32, digest(part, of)) for part in range(of.world_size)
    ]
    return Committed(of, f"/ckpt/{of.step}", tuple(records))


def inventory(*found: list[StoredPart], node_of: tuple[int, ...] | None = None, commits: object = ()) -> Inventory:
    nodes = tuple(range(len(found))) if node_of is None else node_of
    lists = [*found, *([] for _ in range(len(nodes) - len(found)))]
    return Inventory(tuple(tuple(parts) for parts in lists), nodes, tuple(commits))  # type: ignore[arg-type]


def steps(outlook: object) -> list[int]:
    return [candidate.attempt.step for candidate in outlook.candidates]  # type: ignore[attr-defined]


# --- which step -------------------------------------------------------------------------------------------------------


def test_nothing_survives() -> None:
    outlook = survey(inventory([], [], []))
    assert outlook.candidates == () and outlook.rejected == ()


def test_the_newest_complete_step_comes_first() -> None:
    parts = [[stored(attempt(step), part) for step in (10, 30, 20)] for part in range(4)]
    outlook = survey(inventory(*parts, commits=[committed(attempt(5)), committed(attempt(25))]))
    assert steps(outlook) == [30, 25, 20, 10, 5] and outlook.rejected == ()
    assert steps(survey(inventory(*parts, commits=[committed(attempt(25))]), 20)) == [20]
    assert steps(survey(inventory(*parts), 21)) == []


def test_a_step_with_a_missing_part_is_rejected_by_name() -> None:
    parts = [[stored(attempt(10, ranks=20), part)] for part in range(4)]
    outlook = survey(inventory(*parts))
    assert outlook.candidates == ()
    ((step, reason),) = outlook.rejected
    assert step == 10 and reason.startswith("parts 4, 5, 6, 7, 8, 9, 10, 11 ... of 20: found on no node")
    whole = [[stored(attempt(10), part)] for part in range(3)]
    assert survey(inventory(*whole)).rejected == (
        (10, "part 3 of 4: found on no node; not committed to the persistent level"),
    )


def test_parts_of_two_attempts_at_one_step_never_meet() -> None:
    """The job was restarted and came to step 10 again before it died: half the parts are of either session."""
    first, second = attempt(10, session="1", sequence=9), attempt(10, session="2", sequence=3)
    parts = [[stored(first if part < 2 else second, part)] for part in range(4)]
    outlook = survey(inventory(*parts))
    assert outlook.candidates == () and [step for step, _ in outlook.rejected] == [10, 10]
    whole = survey(inventory(*parts, commits=[committed(first)]))
    (candidate,) = whole.candidates
    assert candidate.attempt == first
    assert [[source.level for source in places] for places in candidate.sources] == [
        ["local", "persistent"],
        ["local", "persistent"],
        ["persistent"],
        ["persistent"],
    ]


def test_two_calls_of_one_session_at_one_step_are_two_attempts() -> None:
    """The first failed at the persistent level; its local parts may still be there on some nodes."""
    first, second = attempt(10, sequence=3), attempt(10, sequence=4)
    parts = [[stored(second, 0)], [stored(first, 1)], [stored(second, 2)], [stored(second, 3)]]
    assert survey(inventory(*parts)).candidates == ()
    both = [[stored(one, part, path=f"/{one.sequence}/{part}") for one in (first, second)] for part in range(4)]
    assert [candidate.attempt for candidate in survey(inventory(*both)).candidates] == [second, first]


def test_of_two_attempts_at_one_step_the_committed_one_comes_first() -> None:
    local_only, saved = attempt(10, session="2", sequence=7), attempt(10, session="1", sequence=2)
    parts = [[stored(local_only, part)] for part in range(4)]
    outlook = survey(inventory(*parts, commits=[committed(saved)]))
    assert [candidate.attempt for candidate in outlook.candidates] == [saved, local_only]


def test_of_two_attempts_of_one_session_the_last_one_comes_first() -> None:
    """``force=True`` saves a step once more: committed or not, that is what counts."""
    first, forced = attempt(10, session="1", sequence=2), attempt(10, session="1", sequence=3)
    other = attempt(10, session="2", sequence=9)
    parts = [[stored(forced, part), stored(other, part)] for part in range(4)]
    outlook = survey(inventory(*parts, commits=[committed(first)]))
    assert [candidate.attempt for candidate in outlook.candidates] == [forced, first, other]


def test_the_order_of_attempts_is_one_whatever_they_have_in_common() -> None:
    small, large = (attempt(10, ranks=ranks, session="1", sequence=2) for ranks in (2, 4))
    outlooks = [
        survey(inventory(commits=[committed(each) for each in order])) for order in ((small, large), (large, small))
    ]
    assert [[each.attempt for each in outlook.candidates] for outlook in outlooks] == [[large, small]] * 2


def test_other_world_sizes_are_other_attempts() -> None:
    small, large = attempt(10, ranks=2, session="1"), attempt(10, ranks=4, session="2")
    parts = [[stored(small, part % 2)] for part in range(4)]
    outlook = survey(inventory(*parts, commits=[committed(large)]))
    assert {candidate.attempt.world_size for candidate in outlook.candidates} == {2, 4}
    assert all(len(candidate.sources) == candidate.attempt.world_size for candidate in outlook.candidates)


def test_a_local_part_with_another_index_than_the_manifest_says_is_no_source() -> None:
    of = attempt(10)
    parts = [[stored(of, part, index_digest="f" * 32 if part == 1 else "")] for part in range(4)]
    (candidate,) = survey(inventory(*parts, commits=[committed(of)])).candidates
    assert [places[0].level for places in candidate.sources] == ["local", "persistent", "local", "local"]


# --- sources ----------------------------------------------------------------------------------------------------------


def test_ranks_of_a_node_read_its_files_and_each_file_counts_once() -> None:
    of = attempt(10, ranks=2)
    on_node = [stored(of, 0), stored(of, 1)]
    (candidate,) = survey(inventory(on_node, on_node, on_node, node_of=(0, 0, 1))).candidates
    assert [[source.readers for source in places] for places in candidate.sources] == [[(0, 1), (2,)]] * 2
    only_first_lists = survey(inventory(on_node, [], [], node_of=(0, 0, 1))).candidates[0]
    assert [[source.readers for source in places] for places in only_first_lists.sources] == [[(0, 1)]] * 2


def test_a_bad_source_gives_way_to_the_next_and_then_to_none() -> None:
    of = attempt(10, ranks=2)
    (candidate,) = survey(inventory([stored(of, 0)], [stored(of, 1)], commits=[committed(of)])).candidates
    rest = candidate.without([(1, Location(1, "/local/1/10/1"))])
    assert isinstance(rest, Candidate)
    assert [[source.level for source in places] for places in rest.sources] == [["local", "persistent"], ["persistent"]]
    assert rest.without([(0, Location(1, "/local/1/10/1"))]) == rest, "another part's path"
    assert rest.without([(1, Location(0, "/ckpt/10/part-1"))]) == 1
    assert candidate.without([]) == candidate


def test_a_bad_file_says_nothing_of_one_with_the_same_path_on_another_node() -> None:
    of = attempt(10, ranks=2)
    both = [replace(stored(of, part), path=f"/local/10/{part}") for part in range(2)]
    (candidate,) = survey(inventory(both, both)).candidates
    rest = candidate.without_files([Location(0, "/local/10/0")])
    assert [[source.readers for source in places] for places in rest.sources] == [[(1,)], [(0,), (1,)]]
    assert rest.lacking == ()
    assert rest.without_files([Location(1, "/local/10/0")]).lacking == (0,)
    assert rest.without_parts([1]).lacking == (1,)


# --- who reads what ---------------------------------------------------------------------------------------------------


def candidate_of(sizes: list[int], readers: tuple[int, ...]) -> Candidate:
    of = attempt(1, ranks=len(sizes))
    sources = [(Source("persistent", f"/p/{part}", readers, size, ""),) for part, size in enumerate(sizes)]
    return Candidate(of, tuple(sources))


def loads(candidate: Candidate, ranks: int) -> list[int]:
    load = [0] * ranks
    for read in assign(candidate, ranks):
        load[read.reader] += read.source.nbytes
    return load


def test_every_part_has_one_reader_that_can_read_it() -> None:
    of = attempt(10, ranks=6)
    parts = [[stored(of, part) for part in (0, 1, 2)], [], [stored(of, part) for part in (3, 4, 5)], []]
    (candidate,) = survey(inventory(*parts, node_of=(0, 0, 1, 1))).candidates
    reads = assign(candidate, 4)
    assert [read.part for read in reads] == list(range(6))
    assert all(read.reader in read.source.readers for read in reads)
    assert {read.reader for read in reads} == {0, 1, 2, 3}, "all share the work"


def test_own_parts_are_read_by_their_rank_where_that_costs_nothing() -> None:
    assert [read.reader for read in assign(candidate_of([10] * 8, tuple(range(8))), 8)] == list(range(8))


def test_more_parts_than_ranks_are_balanced() -> None:
    assert loads(candidate_of([10] * 12, (0, 1, 2)), 3) == [40, 40, 40]
    assert sorted(loads(candidate_of([70, 30, 30, 40, 30], (0, 1)), 2)) == [100, 100]


def test_fewer_parts_than_ranks_leave_ranks_idle() -> None:
    assert sorted(loads(candidate_of([10, 20], tuple(range(5))), 5)) == [0, 0, 0, 10, 20]


def test_a_rank_that_does_not_restore_is_no_reader() -> None:
    """Saved by more ranks than restore: part numbers beyond the world are read by those that are there."""
    assert all(read.reader < 2 for read in assign(candidate_of([10] * 7, (0, 1)), 2))


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    ranks=st.integers(1, 12),
    nodes=st.integers(1, 4),
    data=st.data(),
)
def test_readers_are_balanced_as_greedily_as_can_be(
    sizes: list[int], ranks: int, nodes: int, data: st.DataObject
) -> None:
    """Against the plain rule: largest first, to the least loaded rank that can read it, own part on equal load."""
    groups = [tuple(rank for rank in range(ranks) if rank % nodes == node) for node in range(nodes)]
    groups = [group for group in groups if group] + [tuple(range(ranks))]
    choices = [data.draw(st.sampled_from(range(len(groups)))) for _ in sizes]
    sources = [(Source("local", f"/{part}", groups[choices[part]], size, ""),) for part, size in enumerate(sizes)]
    candidate = Candidate(attempt(1, ranks=len(sizes)), tuple(sources))
    load, expected = [0] * ranks, {}
    for part in sorted(range(len(sizes)), key=lambda part: (-sizes[part], part)):
        reader = min(groups[choices[part]], key=lambda rank: (load[rank], rank != part, rank))
        load[reader] += sizes[part]
        expected[part] = reader
    assert {read.part: read.reader for read in assign(candidate, ranks)} == expected


def test_thousands_of_ranks_are_planned_at_once() -> None:
    """Every rank plans alone: time and memory must not grow with the square of their number."""
    ranks = 8192
    of = attempt(10, ranks=ranks)
    nodes = tuple(rank // 8 for rank in range(ranks))
    parts = [[stored(of, part) for part in range(rank, rank + 8)] if rank % 8 == 0 else [] for rank in range(ranks)]
    for found in (parts, []):
        (candidate,) = survey(inventory(*found, node_of=nodes, commits=[committed(of)])).candidates
        assert [read.reader for read in assign(candidate, ranks)] == list(range(ranks))
        assert len({id(places[-1].readers) for places in candidate.sources}) == 1


# --- explanation and transport ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        ([], "step 10: 4 of 4 parts local; saved by 4 ranks"),
        ([1, 3], "step 10: 2 of 4 parts local, 2 of 4 parts persistent; saved by 4 ranks"),
        ([0, 1, 2, 3], "step 10: 4 of 4 parts persistent; saved by 4 ranks"),
    ],
)
def test_the_choice_is_explained_in_one_line(lost: list[int], line: str) -> None:
    of = attempt(10)
    parts = [[] if part in lost else [stored(of, part)] for part in range(4)]
    (candidate,) = survey(inventory(*parts, commits=[committed(of)])).candidates
    assert explain(candidate, assign(candidate, 4)) == line


def test_one_rank_is_not_ranks() -> None:
    (candidate,) = survey(inventory([stored(attempt(3, ranks=1), 0)])).candidates
    assert explain(candidate, assign(candidate, 1)) == "step 3: 1 of 1 parts local; saved by 1 rank"


def test_parts_travel_as_json() -> None:
    import json

    part = stored(attempt(7, session="b", sequence=3), 2)
    assert StoredPart.from_json(json.loads(json.dumps(part.to_json()))) == part


@given(data=st.data())
def test_the_plan_does_not_depend_on_the_order_of_the_inventory(data: st.DataObject) -> None:
    of = [attempt(10, ranks=3, session=session) for session in "12"]
    pool = [
        stored(one, part, path=f"/{one.session[0]}{copy}/{part}") for one in of for part in range(3) for copy in "xy"
    ]
    found = data.draw(st.lists(st.sampled_from(pool), unique_by=lambda part: part.path, max_size=12))
    commits = data.draw(st.lists(st.sampled_from([committed(one) for one in of]), max_size=1))
    shuffled = data.draw(st.permutations(found))
    one, other = (survey(inventory(parts, [], node_of=(0, 0), commits=commits)) for parts in (found, shuffled))
    assert [c.attempt for c in one.candidates] == [c.attempt for c in other.candidates]
    assert one.rejected == other.rejected


# --- copies and parity ------------------------------------------------------------------------------------------------


def copied(of: Attempt, part: int, *, path: str = "", index_digest: str = "") -> StoredPart:
    path = path or f"/partner/{of.session[0]}/{of.step}/{part}"
    return StoredPart("partner", of, part, path, 1000, index_digest or digest(part, of))


def share(
    of: Attempt,
    place: int,
    *,
    parts: Sequence[int | None] = (0, 1, 2, 3),
    tolerate: int = 1,
    path: str = "",
    other: Mapping[int, str] = MappingProxyType({}),
) -> StoredParity:
    """The parity that the member at ``place`` stores; ``other``: digests of parts that were others when encoded."""
    members = [
        ParityMember(None, 0, "") if part is None else ParityMember(part, 1000, other.get(part, digest(part, of)))
        for part in parts
    ]
    path = path or f"/parity/{of.session[0]}/{of.step}/{place}"
    return StoredParity(ParityIdentity(of, tuple(members), tolerate, 64, place), path, 9000)


def shares(of: Attempt, lost: Collection[int] = (), **options: Any) -> list[list[StoredParity]]:
    """Per rank, its share of the one set of four nodes."""
    return [[] if place in lost else [share(of, place, **options)] for place in range(4)]


def parts_left(of: Attempt, lost: Collection[int] = ()) -> list[list[StoredPart]]:
    """Per rank, its part, on nodes of one rank each."""
    return [[] if part in lost else [stored(of, part)] for part in range(of.world_size)]


def protected(
    found: Sequence[list[StoredPart]],
    parity: Sequence[list[StoredParity]] = (),
    *,
    node_of: tuple[int, ...] | None = None,
    commits: object = (),
) -> Inventory:
    return replace(inventory(*found, node_of=node_of, commits=commits), parity=tuple(map(tuple, parity)))


def levels(candidate: Candidate) -> list[list[str]]:
    return [[source.level for source in places] for places in candidate.sources]


PARITY_NAME = "parity set of parts 0, 1, 2, 3"


@pytest.mark.parametrize("tolerate", [1, 2, 3])
def test_as_many_nodes_as_tolerated_come_back_from_parity(tolerate: int) -> None:
    of = attempt(10)
    for lost in itertools.combinations(range(4), tolerate):
        outlook = survey(protected(parts_left(of, lost), shares(of, lost, tolerate=tolerate)))
        (candidate,) = outlook.candidates
        assert levels(candidate) == [["parity"] if part in lost else ["local"] for part in range(4)], "no node to spare"
        assert outlook.rejected == outlook.notes == outlook.lost == ()
        for part in lost:
            (source,) = candidate.sources[part]
            assert (source.path, source.readers, source.nbytes) == (PARITY_NAME, (0, 1, 2, 3), 1000)
            assert source.index_digest == digest(part, of) and source.rebuild is not None
            assert source.rebuild.identity == share(of, part, tolerate=tolerate).identity
            left = [place for place in range(4) if place not in lost]
            assert source.rebuild.data == tuple(Piece(place, f"/local/1/10/{place}", (place,)) for place in left)
            assert source.rebuild.parity == tuple(Piece(place, f"/parity/1/10/{place}", (place,)) for place in left)


@pytest.mark.parametrize("tolerate", [1, 2, 3])
def test_parts_that_are_there_can_be_computed_as_well_while_a_node_could_still_be_lost(tolerate: int) -> None:
    """Their files have not been read yet and may turn out bad; that counts as one loss more."""
    of = attempt(10)
    for lost in itertools.combinations(range(4), tolerate - 1):
        (candidate,) = survey(protected(parts_left(of, lost), shares(of, lost, tolerate=tolerate))).candidates
        assert levels(candidate) == [["parity"] if part in lost else ["local", "parity"] for part in range(4)]


@pytest.mark.parametrize("tolerate", [1, 2, 3])
def test_one_node_more_is_too_many_and_the_reason_says_what_is_lacking(tolerate: int) -> None:
    of = attempt(10)
    for lost in itertools.combinations(range(4), tolerate + 1):
        outlook = survey(protected(parts_left(of, lost), shares(of, lost, tolerate=tolerate)))
        assert outlook.candidates == ()
        if tolerate == 3:
            assert outlook.rejected == outlook.lost == (), "there is no trace of it left"
            continue
        reason = (
            f"parts {', '.join(map(str, lost))} of 4: found on no node; parity: of the 4 nodes of the set, "
            f"{len(lost)} lack their part or parity; {tolerate} may be lost; not committed to the persistent level"
        )
        assert outlook.rejected == ((10, reason),) and outlook.lost == (10,)


def test_a_node_that_lacks_only_its_part_or_only_its_parity() -> None:
    """Storage that was partly lost: what is left of it helps. Stripe s has its parity on member s."""
    of = attempt(10)
    only_parity_gone = survey(protected(parts_left(of, [1]), shares(of, [1, 2])))
    assert only_parity_gone.candidates == () and "2 lack their part or parity" in only_parity_gone.rejected[0][1]
    only_part_gone = survey(protected(parts_left(of, [1]), shares(of)))
    assert levels(only_part_gone.candidates[0])[1] == ["parity"]
    assert survey(protected(parts_left(of), shares(of, [0, 1, 2, 3]))).candidates != (), "parity is not needed"
    # part 1 is in every stripe but number 1, so the parity on member 1 is of no use to it
    assert levels(survey(protected(parts_left(of, [1]), shares(of, [1]))).candidates[0])[1] == ["parity"]


def test_a_member_without_a_part_has_nothing_to_lose_but_parity() -> None:
    of = attempt(10, ranks=2)
    members = (0, 1, None)
    parity = [[share(of, place, parts=members)] for place in range(3)]
    whole = survey(protected([[stored(of, 0)], [], []], parity)).candidates[0]
    assert levels(whole) == [["local"], ["parity"]]
    rebuild = whole.sources[1][0].rebuild
    assert rebuild is not None and rebuild.data[-1] == Piece(2, "", (0, 1, 2)), "zeros, which anyone can read"
    rest = survey(protected([[stored(of, 0)], [], []], [parity[0], [], []]))
    assert rest.candidates == () and "part 1 of 2" in rest.rejected[0][1]


def test_cheaper_sources_come_first() -> None:
    """Local, then partner, then parity, then persistent; each one in turn if those before it turn out bad."""
    of = attempt(10)
    found = [[stored(of, part), copied(of, (part + 1) % 4)] for part in range(4)]
    for listed in (found, [list(reversed(parts)) for parts in found]):
        (candidate,) = survey(protected(listed, shares(of), commits=[committed(of)])).candidates
        assert levels(candidate) == [["local", "partner", "parity", "persistent"]] * 4
        assert [source.readers for source in candidate.sources[2]] == [(2,), (1,), (0, 1, 2, 3), (0, 1, 2, 3)]
        rest: Candidate | int = candidate
        for location, left in (
            (Location(2, "/local/1/10/2"), ["partner", "parity", "persistent"]),
            (Location(1, "/partner/1/10/2"), ["parity", "persistent"]),
            (Location(0, PARITY_NAME), ["persistent"]),
        ):
            assert isinstance(rest, Candidate)
            rest = rest.without([(2, location)])
            assert isinstance(rest, Candidate) and levels(rest)[2] == left
            assert levels(rest)[1] == ["local", "partner", "parity", "persistent"]
        assert isinstance(rest, Candidate) and rest.without([(2, Location(0, "/ckpt/10/part-2"))]) == 2


def test_all_copies_of_other_parts_serve_a_rebuild() -> None:
    """Of part 0 only parity is left; part 1 is there as a copy only, part 2 twice."""
    of = attempt(10)
    found = [[], [], [copied(of, 1), stored(of, 2)], [copied(of, 2), stored(of, 3)]]
    (candidate,) = survey(protected(found, shares(of, [0]))).candidates
    assert levels(candidate) == [["parity"], ["partner"], ["local", "partner"], ["local"]]
    rebuild = candidate.sources[0][0].rebuild
    assert rebuild is not None
    assert rebuild.data == (
        Piece(1, "/partner/1/10/1", (2,)),
        Piece(2, "/local/1/10/2", (2,)),
        Piece(2, "/partner/1/10/2", (3,)),
        Piece(3, "/local/1/10/3", (3,)),
    )


def test_a_part_and_its_copy_both_lost() -> None:
    """Partners are next to each other here: nodes 1 and 2 are gone, and with them both files of part 1."""
    of = attempt(10)
    found = [[stored(of, part), copied(of, (part - 1) % 4)] if part not in (1, 2) else [] for part in range(4)]
    outlook = survey(protected(found))
    assert outlook.candidates == () and outlook.lost == (10,)
    assert outlook.rejected == ((10, "part 1 of 4: found on no node; not committed to the persistent level"),)
    one_less = [found[0], found[1], [stored(of, 2), copied(of, 1)], found[3]]
    assert levels(survey(protected(one_less)).candidates[0])[1] == ["partner"]


def test_parts_with_other_stories_are_told_apart() -> None:
    """A set that was hit too hard, and a part that nobody has encoded."""
    of = attempt(10, ranks=5)
    outlook = survey(protected([[stored(of, 0)], []], [[share(of, 0, parts=(1, 2, 3))]], node_of=(0, 1)))
    ((_, reason),) = outlook.rejected
    assert reason.split("\n    ") == [
        "parts 1, 2, 3 of 5: found on no node; parity: of the 3 nodes of the set, 3 lack their part or parity; "
        "1 may be lost; not committed to the persistent level",
        "part 4 of 5: found on no node; not committed to the persistent level",
    ]


def test_parity_of_another_attempt_is_never_used() -> None:
    """Neither of another session at the same step, nor of another call in the same one."""
    of = attempt(10)
    for other in (attempt(10, session="2"), attempt(10, sequence=1), attempt(11), attempt(10, ranks=5)):
        outlook = survey(protected(parts_left(of, [1]), shares(other)))
        assert outlook.candidates == ()
        assert (10, "part 1 of 4: found on no node; not committed to the persistent level") in outlook.rejected
        mixed = survey(
            protected(parts_left(of, [1]), [[*a, *b] for a, b in zip(shares(other), shares(of), strict=True)])
        )
        (candidate,) = mixed.candidates
        rebuild = candidate.sources[1][0].rebuild
        assert candidate.attempt == of and rebuild is not None and rebuild.identity.attempt == of
        assert {piece.path for piece in rebuild.parity} == {f"/parity/1/10/{place}" for place in range(4)}


def test_shares_of_one_set_with_another_layout_are_not_of_one_set() -> None:
    """Encoded again with another tolerance: neither of the two has enough by itself for what only both could do."""
    of = attempt(10)
    parity = [[share(of, 0)], [], [share(of, 2, tolerate=2)], [share(of, 3, tolerate=2)]]
    assert levels(survey(protected(parts_left(of, [1]), parity)).candidates[0])[1] == ["parity"]
    outlook = survey(protected(parts_left(of, [1]), [[share(of, 0)], [], [share(of, 2, tolerate=2)], []]))
    assert outlook.candidates == () and outlook.rejected[0][1].count("parity: of the 4 nodes") == 2


def test_a_set_that_turns_out_bad_does_not_take_another_of_the_same_parts_with_it() -> None:
    of = attempt(10)
    parity = [[*a, *b] for a, b in zip(shares(of), shares(of, tolerate=2), strict=True)]
    (candidate,) = survey(protected(parts_left(of, [1]), parity)).candidates
    assert levels(candidate)[1] == ["parity", "parity"]
    rest = candidate.without([(1, candidate.sources[1][0].location)])
    assert isinstance(rest, Candidate) and rest.sources[1] == candidate.sources[1][1:]


def test_every_rank_of_a_node_reads_its_parity_and_each_share_counts_once() -> None:
    of = attempt(10, ranks=2)
    one, other = share(of, 0, parts=(0, 1)), share(of, 1, parts=(0, 1))
    found = protected([[stored(of, 0)], [], []], [[one], [one], [other]], node_of=(0, 0, 1))
    rebuild = survey(found).candidates[0].sources[1][0].rebuild
    assert rebuild is not None
    assert rebuild.parity == (Piece(0, one.path, (0, 1)), Piece(1, other.path, (2,)))


# --- files that contradict each other ---------------------------------------------------------------------------------

WRONG = "f" * 32


@pytest.mark.parametrize("wrong_first", [True, False])
def test_the_manifest_decides_between_files(wrong_first: bool) -> None:
    """Even against the parity, which was computed of the wrong one."""
    of = attempt(10)
    files = [stored(of, 1), copied(of, 1, index_digest=WRONG)]
    found = [[stored(of, 0)], files[::-1] if wrong_first else files, [stored(of, 2)], [stored(of, 3)]]
    outlook = survey(protected(found, shares(of, other={1: WRONG}), commits=[committed(of)]))
    (candidate,) = outlook.candidates
    assert levels(candidate)[1] == ["local", "persistent"], "what was encoded is no source of part 1 either"
    assert outlook.notes == (
        "step 10: /partner/1/10/1 (node of rank 1): claims to be part 1, "
        "but its index is not what the manifest says; ignored",
    )
    rebuild = candidate.sources[0][1].rebuild
    assert rebuild is not None and [piece.path for piece in rebuild.data if piece.place == 1] == ["/partner/1/10/1"]


@pytest.mark.parametrize("wrong_first", [True, False])
def test_without_a_manifest_the_parity_decides_between_files(wrong_first: bool) -> None:
    of = attempt(10)
    files = [stored(of, 1, index_digest=WRONG), copied(of, 1)]
    found = [[stored(of, 0)], files[::-1] if wrong_first else files, [stored(of, 2)], [stored(of, 3)]]
    outlook = survey(protected(found, shares(of)))
    (candidate,) = outlook.candidates
    assert levels(candidate)[1] == ["partner", "parity"]
    assert outlook.notes == (
        "step 10: /local/1/10/1 (node of rank 1): claims to be part 1, "
        "but its index is not what the parity was computed of; ignored",
    )
    for part in (0, 2, 3):
        rebuild = candidate.sources[part][1].rebuild
        assert rebuild is not None and "/local/1/10/1" not in {piece.path for piece in rebuild.data}


def test_a_lone_file_that_is_not_what_was_encoded_gives_way_to_the_rebuild() -> None:
    of = attempt(10)
    found = [[stored(of, part, index_digest=WRONG if part == 1 else "")] for part in range(4)]
    assert levels(survey(protected(found, shares(of))).candidates[0])[1] == ["parity"]
    outlook = survey(protected(found, shares(of, [0, 1, 2])))
    assert outlook.candidates == () and outlook.notes == ()
    ((_, reason),) = outlook.rejected
    assert reason.startswith(
        "part 1 of 4: /local/1/10/1 (node of rank 1): claims to be part 1, but its index is not what the parity"
    )
    assert "4 nodes of the set, 4 lack" not in reason and "3 lack their part or parity; 1 may be lost" in reason


def test_without_manifest_and_parity_none_of_the_files_is_used() -> None:
    of = attempt(10)
    found = [[stored(of, 0)], [stored(of, 1), copied(of, 1, index_digest=WRONG)], [stored(of, 2)], [stored(of, 3)]]
    outlook = survey(protected(found))
    assert outlook.candidates == () and outlook.lost == (10,)
    ((step, reason),) = outlook.rejected
    assert step == 10 and reason.startswith(
        "part 1 of 4: files that claim to be part 1 contradict each other, and nothing decides: "
        "/local/1/10/1 (node of rank 1), /partner/1/10/1 (node of rank 1); "
    )
    others = survey(protected(found, commits=[committed(attempt(5))]))
    assert steps(others) == [5] and others.rejected == outlook.rejected


def encoded_again(part: StoredPart) -> StoredPart:
    return replace(part, index_digest=WRONG, content_digest="c" * 32)


def test_files_of_the_same_bytes_in_two_encodings_do_not_contradict_each_other() -> None:
    """As when a part was restored from the persistent level, and a node with the other encoding comes back."""
    of = attempt(10)
    here = [[replace(stored(of, part), content_digest="c" * 32)] for part in range(4)]
    here[2].append(encoded_again(copied(of, 1)))
    outlook = survey(protected(here))
    assert levels(outlook.candidates[0])[1] == ["local", "partner"] and outlook.notes == ()
    other = replace(here[2][1], content_digest="d" * 32)
    assert not survey(protected([here[0], here[1], [here[2][0], other], here[3]])).candidates


def test_parity_of_one_encoding_counts_files_of_both() -> None:
    of = attempt(10)
    here = [[replace(stored(of, part), content_digest="c" * 32)] for part in range(4)]
    here[2].append(encoded_again(copied(of, 1)))
    (candidate,) = survey(protected(here, shares(of))).candidates
    assert levels(candidate)[1] == ["local", "partner", "parity"]
    alone = [here[0], [], here[2], here[3]]
    assert levels(survey(protected(alone, shares(of))).candidates[0])[1] == ["parity"], "nothing says that it is alike"


def test_older_parity_beside_what_was_encoded_anew() -> None:
    """Part 1 was lost, restored in another encoding, and encoded again; shares of the first set are still there."""
    of = attempt(10)
    here = [[replace(stored(of, part), content_digest="c" * 32)] for part in range(4)]
    here[1] = [encoded_again(here[1][0])]
    older = shares(of)
    newer = [[replace(each, identity=_of_digest(each.identity, 1, WRONG)) for each in node] for node in older]
    both = [[*a, *b] for a, b in zip(older, newer, strict=True)]
    (candidate,) = survey(protected(here, both)).candidates
    assert levels(candidate)[1] == ["local", "parity"]
    rebuild = candidate.sources[1][1].rebuild
    assert rebuild is not None and rebuild.identity.members[1].index_digest == WRONG


def _of_digest(identity: ParityIdentity, place: int, digest: str) -> ParityIdentity:
    members = list(identity.members)
    members[place] = replace(members[place], index_digest=digest)
    return replace(identity, members=tuple(members))


def test_files_that_were_found_are_not_called_found_on_no_node() -> None:
    of = attempt(10)
    found = [[stored(of, 0)], [stored(of, 1), copied(of, 1, index_digest=WRONG)], [stored(of, 2)], [stored(of, 3)]]
    assert "found on no node" not in survey(protected(found)).rejected[0][1]


def test_two_copies_of_one_file_do_not_contradict_each_other() -> None:
    of = attempt(10)
    found = [[stored(of, part), copied(of, (part + 1) % 4)] for part in range(4)]
    outlook = survey(protected(found))
    assert levels(outlook.candidates[0]) == [["local", "partner"]] * 4 and outlook.notes == ()


def test_parity_sets_that_contradict_each_other() -> None:
    """Two sets of the same parts, encoded at different times of what should have been the same: no one knows."""
    of = attempt(10)
    parity = [[*a, *b] for a, b in zip(shares(of, [1]), shares(of, [1], other={1: WRONG}), strict=True)]
    outlook = survey(protected(parts_left(of, [1]), parity))
    assert outlook.candidates == () and outlook.lost == (10,)
    assert "part 1 of 4: files that claim to be part 1 contradict" in outlook.rejected[0][1]
    assert "in parity sets" in outlook.rejected[0][1]
    decided = survey(protected(parts_left(of, [1]), parity, commits=[committed(of)])).candidates[0]
    assert levels(decided)[1] == ["parity", "persistent"]
    rebuild = decided.sources[1][0].rebuild
    assert rebuild is not None and rebuild.identity.members[1].index_digest == digest(1, of)


# --- what was complete once -------------------------------------------------------------------------------------------


def test_steps_that_were_complete_once_are_told_from_others() -> None:
    """A restart refuses to begin anew if they are lost. Of a step that never was complete nothing is lost."""
    of = attempt(10)
    nothing_but_parts = parts_left(of, [1])
    assert survey(protected(nothing_but_parts)).lost == ()
    assert survey(protected([*nothing_but_parts[:3], [copied(of, 2)]])).lost == (10,)
    assert survey(protected(nothing_but_parts, [[share(of, 0)]])).lost == (10,)
    assert survey(protected([[], [], [], []], [[share(of, 0)]])).lost == (10,)
    whole = survey(protected(parts_left(of), shares(of)))
    assert whole.lost == () and len(whole.candidates) == 1, "it is not lost"
    of_several = [[stored(attempt(step), 0), copied(attempt(30), 1)] for step in (10, 20)]
    outlook = survey(protected([*of_several, [], []], [[share(attempt(20), 0)]]))
    assert sorted(outlook.lost) == [20, 30] and [step for step, _ in outlook.rejected] == [30, 20, 10]
    assert survey(protected([*of_several, [], []]), 10).lost == ()


# --- explanation and transport of parity ------------------------------------------------------------------------------


def test_a_rebuild_is_explained_in_one_line() -> None:
    of = attempt(10)
    found = [[stored(of, 0), copied(of, 1)], [], [], [stored(of, 3)]]
    (candidate,) = survey(protected(found, shares(of, [1, 2], tolerate=2))).candidates
    assert explain(candidate, assign(candidate, 4)) == (
        "step 10: 2 of 4 parts local, 1 of 4 parts partner, 1 of 4 parts rebuilt from parity; saved by 4 ranks"
    )


def test_every_part_is_explained_with_what_comes_next() -> None:
    of = attempt(10)
    found = [[stored(of, 0)], [], [stored(of, 2)], [stored(of, 3)]]
    (candidate,) = survey(protected(found, shares(of, [1], tolerate=2))).candidates
    there = "{} other parts and 3 shares of parity are there; 2 of 4 nodes may be lost"
    fallback, rebuild = (f"{PARITY_NAME} ({there.format(count)})" for count in (2, 3))
    assert explain_parts(candidate, assign(candidate, 4)) == [
        f"part 0 (1000 bytes): rank 0 takes it from local /local/1/10/0; otherwise {fallback}",
        f"part 1 (1000 bytes): rank 1 takes it from {rebuild}; there is no other source",
        f"part 2 (1000 bytes): rank 2 takes it from local /local/1/10/2; otherwise {fallback}",
        f"part 3 (1000 bytes): rank 3 takes it from local /local/1/10/3; otherwise {fallback}",
    ]
    found[0].append(copied(of, 1))
    with_all = protected(found, shares(of, [1], tolerate=2), commits=[committed(of)])
    (candidate,) = survey(with_all).candidates
    assert explain_parts(candidate, assign(candidate, 4))[1] == (
        f"part 1 (1000 bytes): rank 0 takes it from partner /partner/1/10/1; otherwise {rebuild}, "
        "then persistent /ckpt/10/part-1"
    )


def test_the_explanation_counts_parts_and_not_their_copies() -> None:
    of = attempt(10)
    found = [[stored(of, part), copied(of, (part + 1) % 4)] for part in range(4)]
    (candidate,) = survey(protected(found, shares(of))).candidates
    (line,) = explain_parts(candidate, assign(candidate, 4))[1:2]
    assert "(3 other parts and 4 shares of parity are there; 1 of 4 nodes may be lost)" in line


def test_the_explanation_does_not_count_parts_that_do_not_exist() -> None:
    of = attempt(10, ranks=3)
    parity = [[share(of, place, parts=(0, 1, 2, None))] for place in range(4)]
    (candidate,) = survey(protected([*parts_left(of), []], parity)).candidates
    (line,) = explain_parts(candidate, assign(candidate, 4))[1:2]
    assert "parity set of parts 0, 1, 2 (2 other parts and 4 shares of parity are there;" in line


def test_parity_travels_as_json() -> None:
    import json

    for parts in ((0, 1, 2, 3), (2, None, 1, None)):
        one = share(attempt(7, session="b", sequence=3), 2, parts=parts, tolerate=3)
        assert StoredParity.from_json(json.loads(json.dumps(one.to_json()))) == one


# --- any loss of any nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """A job whose nodes protect each other, and the nodes that are lost after it has saved."""

    nodes: Nodes
    copies: tuple[Copy, ...]
    sets: tuple[ParitySet, ...]
    lost: frozenset[int]

    def node_of(self, rank: int) -> int:
        return next(node for node, ranks in enumerate(self.nodes.ranks) if rank in ranks)

    @property
    def ranks(self) -> int:
        return sum(map(len, self.nodes.ranks))

    def levels_left(self, part: int) -> list[str]:
        """Where a part can be had, by looking at nodes: itself, its copy, enough of every stripe that it is in."""
        found = [] if self.node_of(part) in self.lost else ["local"]
        found += ["partner" for copy in self.copies if copy.part == part and self.node_of(copy.target) not in self.lost]
        return found + ["parity" for each in self.sets if self._can_be_rebuilt(part, each)]

    def _can_be_rebuilt(self, part: int, each: ParitySet) -> bool:
        parts = [member.part for member in each.members]
        if part not in parts:
            return False
        data = {
            place
            for place, other in enumerate(parts)
            if other is None
            or self.node_of(other) not in self.lost
            or any(copy.part == other and self.node_of(copy.target) not in self.lost for copy in self.copies)
        }
        data.discard(parts.index(part))
        parity = {place for place, member in enumerate(each.members) if self.node_of(member.rank) not in self.lost}
        for stripe in range(len(parts)):
            keepers = {(stripe + j) % len(parts) for j in range(each.tolerate)}
            sources = set(range(len(parts))) - keepers
            if parts.index(part) in sources and len(sources & data) + len(keepers & parity) < len(sources):
                return False
        return True

    def inventory(self, of: Attempt) -> Inventory:
        """What a restart finds, on the same nodes with the lost ones replaced by empty ones."""
        found: list[list[StoredPart]] = [[] for _ in range(self.ranks)]
        parity: list[list[StoredParity]] = [[] for _ in range(self.ranks)]
        for node, ranks in enumerate(self.nodes.ranks):
            if node not in self.lost:
                copies = [copy.part for copy in self.copies if copy.target in ranks]
                found[ranks[0]] = [stored(of, part, path=f"/{node}/local/{part}") for part in ranks]
                found[ranks[0]] += [copied(of, part, path=f"/{node}/partner/{part}") for part in copies]
                for number, each in enumerate(self.sets):
                    parts = [member.part for member in each.members]
                    for place, member in enumerate(each.members):
                        if member.rank in ranks:
                            path = f"/{node}/parity/{number}"
                            kept = share(of, place, parts=parts, tolerate=each.tolerate, path=path)
                            parity[ranks[0]].append(kept)
        return protected(found, parity, node_of=tuple(self.node_of(rank) for rank in range(self.ranks)))


@st.composite
def losses(draw: st.DrawFn) -> Loss:
    count = draw(st.integers(2, 6))
    alike = draw(st.booleans())
    per_node = [draw(st.integers(1, 3))] * count if alike else draw(st.lists(st.integers(1, 3), min_size=2, max_size=6))
    node_of = draw(st.permutations([node for node, ranks in enumerate(per_node) for _ in range(ranks)]))
    nodes = Nodes.of(node_of, [draw(st.sampled_from("ab")) for _ in per_node])
    group_size = draw(st.integers(2, len(nodes)))
    tolerate = draw(st.integers(1, group_size - 1))
    which = draw(st.sampled_from(["partner", "parity", "both"]))
    return Loss(
        nodes,
        partner_copies(nodes) if which != "parity" else (),
        parity_sets(nodes, group_size, tolerate) if which != "partner" else (),
        frozenset(draw(st.permutations(range(len(nodes))))[: draw(st.integers(0, len(nodes)))]),
    )


@given(losses())
@settings(max_examples=300)
def test_a_step_is_recoverable_exactly_if_enough_nodes_are_left(loss: Loss) -> None:
    of = attempt(10, ranks=loss.ranks)
    found = loss.inventory(of)
    outlook = survey(found)
    expected = [loss.levels_left(part) for part in range(loss.ranks)]
    assert len(outlook.candidates) == all(expected) and outlook.notes == ()
    if not outlook.candidates:
        traces = len(loss.lost) < len(loss.nodes)
        assert [step for step, _ in outlook.rejected] == [10] * traces
        complete_once = any(file.level == "partner" for files in found.found for file in files) or any(found.parity)
        assert outlook.lost == (10,) * complete_once
        named = [
            int(n)
            for n in re.findall(r"\d+", " ".join(re.findall(r"parts? ([\d, .]+) of \d+:", str(outlook.rejected))))
        ]
        lacking = [part for part, places in enumerate(expected) if not places]
        assert set(named) <= set(lacking) and (
            " ..." in str(outlook.rejected) or sorted(named) == lacking or not traces
        )
        return
    (candidate,) = outlook.candidates
    assert levels(candidate) == expected and outlook.rejected == outlook.lost == ()
    for part, sources in enumerate(candidate.sources):
        for source in sources:
            pieces = [*source.rebuild.data, *source.rebuild.parity] if source.rebuild else [source]
            for piece in pieces:
                if piece.path:
                    node = int(piece.path.split("/")[1])
                    assert node not in loss.lost and piece.readers == loss.nodes.ranks[node]
            assert source.index_digest == digest(part, of)
    reads = assign(candidate, loss.ranks)
    assert [read.source.level for read in reads] == [places[0] for places in expected]
    assert all(read.reader in read.source.readers for read in reads)


@given(losses())
@settings(max_examples=300)
def test_the_promise_in_plain_words(loss: Loss) -> None:
    """Partner: a node and its partner are not both lost. Parity: of no group more nodes are lost than tolerated.

    Where both are on either one is enough. With as many ranks on every node these are also the limits of each level
    by itself; where a node has fewer ranks than another, its missing parts are zeros, which cannot be lost.
    """
    of = attempt(10, ranks=loss.ranks)
    recoverable = len(survey(loss.inventory(of)).candidates) == 1
    pairs = {(loss.node_of(copy.source), loss.node_of(copy.target)) for copy in loss.copies}
    partner_holds = bool(pairs) and not any(set(pair) <= loss.lost for pair in pairs)
    parity_holds = bool(loss.sets) and all(
        sum(loss.node_of(member.rank) in loss.lost for member in each.members) <= each.tolerate for each in loss.sets
    )
    if partner_holds or parity_holds:
        assert recoverable
    elif len({len(ranks) for ranks in loss.nodes.ranks}) == 1 and not (loss.copies and loss.sets):
        assert not recoverable
