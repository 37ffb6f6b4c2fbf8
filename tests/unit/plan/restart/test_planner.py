"""The restart planner: pure, so every case is a few records."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deeppart.plan.restart import (
    Candidate,
    Source,
    assign,
    explain,
    explain_parts,
    survey,
)
from tests.unit.plan.restart.records import (
    PARITY_NAME,
    attempt,
    committed,
    copied,
    inventory,
    parts_left,
    protected,
    share,
    shares,
    steps,
    stored,
)

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
