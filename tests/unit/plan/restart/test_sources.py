"""Where each part can be had, and which of files, copies and parity to believe when they contradict each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deeppart.model import ParityIdentity
from deeppart.plan.restart import BlockFile, Candidate, Location, StoredPart, survey
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


def test_ranks_of_a_node_read_its_files_and_each_file_counts_once() -> None:
    of = attempt(10, ranks=2)
    on_node = [stored(of, 0), stored(of, 1)]
    (candidate,) = survey(inventory(on_node, on_node, on_node, node_of=(0, 0, 1))).candidates
    assert [[source.readers for source in places] for places in candidate.sources] == [[(0, 1), (2,)]] * 2
    only_first_lists = survey(inventory(on_node, [], [], node_of=(0, 0, 1))).candidates[0]
    assert [[source.readers for source in places] for places in only_first_lists.sources] == [[(0, 1)]] * 2


def test_a_bad_file_says_nothing_of_one_with_the_same_path_on_another_node() -> None:
    of = attempt(10, ranks=2)
    both = [replace(stored(of, part), path=f"/local/10/{part}") for part in range(2)]
    (candidate,) = survey(inventory(both, both)).candidates
    rest = candidate.without_files([Location(0, "/local/10/0")])
    assert [[source.readers for source in places] for places in rest.sources] == [[(1,)], [(0,), (1,)]]
    assert rest.lacking == ()
    assert rest.without_files([Location(1, "/local/10/0")]).lacking == (0,)


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
    assert rebuild is not None and rebuild.data[-1] == BlockFile(2, "", (0, 1, 2)), "zeros, which anyone can read"
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
