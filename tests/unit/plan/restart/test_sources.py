"""Where each part can be had, and which of files, copies and parity to believe when they contradict each other."""

from __future__ import annotations

import itertools

import pytest

from deeppart.plan.restart import (
    BlockFile,
    Candidate,
    Location,
    survey,
)
from tests.unit.plan.restart.records import (
    PARITY_NAME,
    attempt,
    committed,
    copied,
    digest,
    inventory,
    levels,
    parts_left,
    protected,
    share,
    shares,
    steps,
    stored,
)

# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_bad_source_gives_way_to_the_next_and_then_to_none() -> None:
    of = attempt(10, ranks=2)
    (candidate,) = survey(inventory([stored(of, 0)], [stored(of, 1)], commits=[committed(of)])).candidates
    rest = candidate.without([(1, Location(1, "/local/1/10/1"))])
    assert isinstance(rest, Candidate)
    assert [[source.level for source in places] for places in rest.sources] == [["local", "persistent"], ["persistent"]]
    assert rest.without([(0, Location(1, "/local/1/10/1"))]) == rest, "another part's path"
    assert rest.without([(1, Location(0, "/ckpt/10/part-1"))]) == 1
    assert candidate.without([]) == candidate


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
            assert source.rebuild.data == tuple(BlockFile(place, f"/local/1/10/{place}", (place,)) for place in left)
            assert source.rebuild.parity == tuple(BlockFile(place, f"/parity/1/10/{place}", (place,)) for place in left)


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
