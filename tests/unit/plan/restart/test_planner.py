"""The restart planner: pure, so every case is a few records."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from deeppart.plan.restart import (
    survey,
)
from tests.unit.plan.restart.records import (
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
