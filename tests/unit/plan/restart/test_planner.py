"""The restart planner: pure, so every case is a few records."""

from __future__ import annotations

import re
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from deeppart.model import Attempt
from deeppart.plan.redundancy import Copy, Nodes, ParitySet, parity_sets, partner_copies
from deeppart.plan.restart import Inventory, StoredParity, StoredPart, assign, survey
from tests.sampling import examples
from tests.unit.plan.restart.records import (
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

# --- which step -------------------------------------------------------------------------------------------------------


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
@settings(max_examples=examples(300))
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
@settings(max_examples=examples(300))
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
