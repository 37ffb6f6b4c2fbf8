"""What is read from where, in words."""

from __future__ import annotations

import pytest

from deeppart.plan.restart import Candidate, Source, assign, explain, explain_parts, survey
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
    stored,
)


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


def test_ranks_that_share_a_part_are_named() -> None:
    few, many = (
        Candidate(attempt(1, ranks=1), ((Source("persistent", "/p/0", tuple(range(ranks)), 1 << 30, ""),),))
        for ranks in (3, 20)
    )
    assert explain_parts(few, assign(few, 3)) == [
        "part 0 (1073741824 bytes): 3 ranks (0, 1, 2) take a stretch of it each from persistent /p/0; "
        "there is no other source"
    ]
    assert "20 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...) take" in explain_parts(many, assign(many, 20))[0]
