"""Matches the live state with a saved step, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from deeppart.comm import Comm
from deeppart.errors import (
    DeeppartError,
    DeeppartWarning,
    LeafMismatchError,
    PerRankError,
    PerRankNotice,
    StructureMismatchError,
)
from deeppart.model import Box
from deeppart.recovery.advice import advice, warnings_of
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.saved import RankLocalPolicies, SavedStep, check_spans
from deeppart.recovery.tables import Tables
from deeppart.state.paths import (
    DROP,
    RANK0,
    ROOT,
    ExactPath,
    PerRankPolicies,
    dropped_notice,
    exact,
    readable,
    some_names,
    strict_error,
)
from deeppart.state.pieces import Held
from deeppart.state.restore import Choice, Target, find_targets
from deeppart.state.tree import (
    FlatState,
    Node,
    RankLocal,
    numbers_in,
    units_of,
    with_items_at,
    with_units,
)


@dataclass(frozen=True, slots=True)
class Matched:
    """A live state, matched with the step to restore.

    Attributes:
        saved: the step.
        held: the pieces that its parts have.
        flat: the flattened live state.
        target: the targets of the saved leaves.
        own: the policies of per-rank leaves on another number of ranks.
        rank: this rank.
        choice: the selected items of the step.
    """

    saved: SavedStep
    held: Held
    flat: FlatState
    target: Target
    own: RankLocalPolicies
    rank: int
    choice: Choice


def check_step(saved: SavedStep, tables: Tables, recovered: Recovered, policies: PerRankPolicies, comm: Comm) -> Held:
    """Check that a step can be restored on so many ranks, whatever their live state is; returns its pieces."""
    if not saved.same_world and (strict := saved.policies_of(policies).refused()):
        raise strict_error(strict, saved.attempt.world_size, comm.size, saved.attempt.step)
    return check_spans(saved, tables, recovered, comm.rank)


def match(
    saved: SavedStep,
    held: Held,
    flat: FlatState,
    choice: Choice,
    policies: PerRankPolicies,
    rank: int,
    *,
    cast: bool,
) -> Matched:
    """Match the live state of a rank with a checked step; changes nothing."""
    own = saved.policies_of(policies)
    matched = Matched(saved, held, flat, _target(saved, own, rank), own, rank, choice)
    target, sharded = matched.target, frozenset(saved.structure.divisions)
    target.may_cast, target.is_chosen = cast, saved.tree_as_saved is not None
    marks: dict[ExactPath, Node | None] = {
        exact(item.path): RankLocal() if item.is_none else None for item in (*choice.left_to_others, *choice.left_out)
    }
    target.structure = replace(target.structure, tree=with_items_at(target.structure.tree, marks))
    gone = saved.left_out | {number for item in choice.left_to_others for number in item.numbers}
    target.drop(gone | {number for item in choice.left_out for number in item.numbers})
    if sharded:
        target.drop(sharded - numbers_in(target.structure.tree))  # in rank-local items of other ranks
    try:
        find_targets(target, flat)
        _with_owners(matched, gone)
    except (StructureMismatchError, LeafMismatchError) as error:
        _advise(error, matched)
        raise
    torn = [(name, policies.of(name), number) for name, number in _torn(matched)]
    if refused := [name for name, way, _ in torn if way not in (RANK0, DROP)]:
        raise _torn_error(saved, refused)
    left = with_units(target.structure.tree, {number for _, way, number in torn if way == DROP})
    target.drop(left)
    for index in left & target.places.keys():
        del target.places[index]
    return matched


def _with_owners(matched: Matched, gone: Set[int]) -> None:
    """Receive the owners of aliases, though they are not restored here: into separate memory, of which the aliases are
    views, or copied from there. The live owner, which is not requested, must not change.
    """
    saved, target = matched.saved, matched.target
    if not gone:
        return
    placed = numbers_in(target.structure.tree)
    needed = {alias.owner for index, alias in target.structure.aliases.items() if index in placed} & gone
    own = {owner for owner in needed if target.structure.per_rank[owner]}
    if own and not saved.same_world:
        aliases = [index for index, alias in target.structure.aliases.items() if alias.owner in own and index in placed]
        raise StructureMismatchError(
            "a per-rank leaf was saved as an alias of another leaf, which is not restored",
            expected=f"both, on another number of ranks than the {saved.attempt.world_size} that saved it",
            where=f"path {readable(target.structure.paths()[min(aliases)])}",
            todo="ask for both, or neither",
        )
    target.dropped -= needed
    target.own |= own


def _torn(matched: Matched) -> Iterator[tuple[str, int]]:
    """Names and numbers of the sharded tensors, and values in parts of the state, that differ between ranks, unless
    this rank gets its own ones back.
    """
    saved, target, rank = matched.saved, matched.target, matched.rank if matched.saved.same_world else None
    for index, division in saved.structure.divisions.items():
        own = {division.box(number): ranks for number, ranks in matched.held.own_of(index).items()}
        if not own or index in target.dropped:
            continue
        place = target.places.get(index)
        live = [Box.whole(division.shape)] if place is None else [each.box for each in place.boxes]
        others = [box for box in live if rank is None or rank not in own.get(box, ())]
        if any(box.common(other) is not None for box in others for other in own):
            yield readable(saved.global_state.tensors[index]), index
    torn = {n: value for n, value in saved.structure.in_parts.items() if value.differs and rank not in value.contents}
    for index in sorted(torn.keys() & numbers_in(target.structure.tree)) if torn else ():
        yield torn[index].name, index


def _torn_error(saved: SavedStep, names: Sequence[str]) -> PerRankError:
    return PerRankError(
        "ranks had different bytes for the same part of the state, and it is restored to another layout",
        found=some_names(names),
        where=f"step {saved.attempt.step}",
        todo='pass per_rank="rank0" to take the bytes of the lowest rank, or "drop" to keep the live ones; or restore '
        "the layout that was saved, or a step from before they differed",
    )


def notices(matched: Matched, size: int) -> list[DeeppartWarning]:
    """Warnings about saved items that may not have been restored as the caller expected."""
    saved, target = matched.saved, matched.target
    attempt, found = saved.attempt, list[DeeppartWarning]()
    if not saved.same_world and (dropped := _dropped_names(matched)):
        found.append(PerRankNotice(dropped_notice(dropped, attempt.world_size, size, attempt.step)))
    texts = warnings_of(matched.choice, target)
    return found + [DeeppartWarning(f"restored step {attempt.step}: {text}") for text in texts]


def _advise(error: DeeppartError, matched: Matched) -> None:
    """Say what to do about an error, where more can be said than at the place of the difference."""
    saved, exchanged = matched.saved, matched.target.exchanged
    if error.where == f"path {ROOT}":
        error.todo = advice(saved.tree_as_saved or saved.structure.tree, matched.flat.root) or error.todo
    elif exchanged:
        error.todo = (
            f"the optimizer is of another class ({'; '.join(exchanged)}): build it as it was when it was saved, or "
            "leave it out of the state that is restored"
        )


def _target(saved: SavedStep, own: RankLocalPolicies, rank: int) -> Target:
    structure, documents = saved.structure, saved.documents.own
    if saved.same_world:
        mine = documents[rank] if len(documents) > rank else documents[0]
        target = Target.of_rank(structure, mine, rank)
    else:
        target = Target.of_rank(structure, None, None)
        leaves = saved.own | own.left
        target.drop(leaves | {index for index, alias in structure.aliases.items() if alias.owner in leaves})
    target.own = saved.own
    return target


def _dropped_names(matched: Matched) -> list[str]:
    left = matched.own.left
    units = [readable(path) for path, _ in units_of(matched.saved.structure.tree, left)]
    inside = tuple(f"{name}/" for name in units)
    return [name for name, way in matched.own.names.items() if way == DROP and not name.startswith(inside)] + units
