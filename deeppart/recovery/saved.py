"""The content of a step as one rank restores it, from the documents of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deeppart._gc import collection_paused
from deeppart.comm import together
from deeppart.errors import CorruptFileError
from deeppart.model import Attempt
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.tables import Tables
from deeppart.state.document import (
    GlobalState,
    RankDocument,
    RankLocalTree,
    Structure,
    decode_meta,
    gather_global_state,
    with_global_state,
    without_rank_local,
)
from deeppart.state.paths import DROP, RANK0, STRICT, ExactPath, Path, PerRankPolicies, PerRankPolicy, exact, readable
from deeppart.state.pieces import Held, check_places, own_faults, refuse
from deeppart.state.restore import Target, build, tie
from deeppart.state.tensors import Array
from deeppart.state.tree import ArrayLeaf, Node, ValueLeaf, with_units


@dataclass(frozen=True, slots=True)
class RankLocalPolicies:
    """How per-rank leaves are restored on another number of ranks.

    Attributes:
        names: the saved paths with their policies.
        leaves, rank_local: the policies ("rank0" or a function) of what is mapped: of leaves and values by number, and
            of rank-local items by path. An alias has the policy of its owner.
        left: numbers of what stays unchanged in the live state, including the others of its units.
        metrics: paths of floating-point numbers.
    """

    names: dict[str, PerRankPolicy] = field(default_factory=dict)
    leaves: dict[int, PerRankPolicy] = field(default_factory=dict)
    rank_local: dict[ExactPath, PerRankPolicy] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    metrics: frozenset[str] = frozenset()

    def refused(self) -> dict[str, str]:
        """The paths without a policy, with suggested ones; random generators are not floating-point numbers."""
        strict = [name for name, way in self.names.items() if way == STRICT]
        return {name: RANK0 if name in self.metrics else DROP for name in strict}


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A step as this rank restores it.

    Attributes:
        attempt: the attempt that saved it.
        documents: of all parts; of part 0 alone if all are equal.
        rank_local: the paths of rank-local items on any rank.
        same_world: as many ranks restore it as saved it.
        structure: the structure that this rank restores.
        own: numbers of the per-rank leaves and values.
        global_state: the global tensors, and the parts of the state.
        left_out: numbers of the leaves and values that this rank does not restore.
        tree_as_saved: the tree of ``structure`` before leaves were left out.
        divided_rank_local: paths of rank-local items that are requested in part only, or that have another name here.
    """

    attempt: Attempt
    documents: Documents
    rank_local: tuple[RankLocalTree, ...]
    same_world: bool
    structure: Structure
    own: frozenset[int]
    global_state: GlobalState
    left_out: frozenset[int] = frozenset()
    divided_rank_local: frozenset[ExactPath] = frozenset()
    tree_as_saved: Node | None = None

    @property
    def of_ranks(self) -> tuple[Structure, ...]:
        """The structure of each part's rank, with its rank-local items; one structure if all are equal."""
        return self.documents.of_ranks

    @property
    def any_own(self) -> bool:
        """True if anything is per rank."""
        return bool(self.own or self.rank_local)

    def policies_of(self, policies: PerRankPolicies) -> RankLocalPolicies:
        """The policies of the per-rank leaves on another number of ranks; the same on all of them."""
        if not self.any_own:
            return RankLocalPolicies()
        # A leaf that this rank does not restore may be restored by another rank, under its saved name.
        whole = self.structure if self.tree_as_saved is None else replace(self.structure, tree=self.tree_as_saved)
        paths, owners = whole.paths(), ((index, alias.owner) for index, alias in whole.aliases.items())
        leaves = {index: readable(paths[index]) for index in sorted(self.own)}
        leaves |= {index: leaves[owner] for index, owner in owners if {index, owner} <= leaves.keys()}
        rank_local = {exact(tree.path): readable(tree.path) for tree in self.rank_local}
        names = {name: policies.of(name) for name in (*leaves.values(), *rank_local.values())}
        left = with_units(self.structure.tree, {index for index, name in leaves.items() if names[name] == DROP})
        values = self.documents.own[0].values
        return RankLocalPolicies(
            names,
            {index: names[name] for index, name in leaves.items() if index not in left},
            {path: names[name] for path, name in rank_local.items() if names[name] != DROP},
            left,
            frozenset(
                name
                for index, name in leaves.items()
                if isinstance(values.get(index), float) or (index in whole.types and not whole.types[index].is_whole)
            ),
        )


def saved_step(attempt: Attempt, documents: Documents, rank: int, size: int) -> SavedStep:
    """The step, for one of ``size`` ranks."""
    shared, where = documents.structure, f"step {attempt.step}"
    of_ranks = documents.of_ranks
    global_state = gather_global_state(shared, documents.own, where)
    global_state.check(shared, where)
    rank_local = rank_local_paths(documents.own, global_state)
    same_world = attempt.world_size == size
    mine = min(rank, len(of_ranks) - 1)
    base = of_ranks[mine] if same_world else without_rank_local(shared, rank_local)
    structure = with_global_state(base, global_state)
    per_rank = structure.per_rank.tolist()
    own = frozenset(
        node.index
        for path, node in (structure.walk() if any(per_rank) else ())
        if isinstance(node, (ArrayLeaf, ValueLeaf)) and per_rank[node.index]
        if same_world or not is_parameter_names(path)
    )
    return SavedStep(
        attempt,
        documents,
        tuple(tree for tree in rank_local if same_world or not is_parameter_names(tree.path)),
        same_world,
        structure,
        own,
        global_state,
    )


def check_spans(saved: SavedStep, tables: Tables, recovered: Recovered, rank: int) -> Held:
    """The pieces that the parts have, after all ranks have checked that the spans have every byte of every leaf once.

    Each rank checks the parts that it leads, its share of the leaves, and the boxes whose spans it keeps.
    """
    shared, where = saved.documents.structure, f"step {saved.attempt.step}"
    for number in recovered.led_by(rank):
        part = number if len(saved.of_ranks) > 1 else 0
        reader, whose = recovered.reader(number), f"{where}, part {number}"
        structure, types, per_rank = saved.of_ranks[part], saved.documents.own[part].types, reader.marked_per_rank
        check_places(structure, types, reader.spans, reader.raw_starts, per_rank, whose)
        refuse(own_faults(structure, types, reader.spans), None, structure, types, whose)
    held = Held(shared, {index.part: index.pieces.spans for index in tables.indexes})
    refuse(held.faults_of(rank, tables.keepers, [tables.kept.spans]), None, shared, {}, where)
    return held


_FAILED = "the documents of a step could not be decoded"


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of all parts.

    Attributes:
        structure: the structure document of rank 0's part.
        own: for each part, its rank's document.
        of_ranks: for each part, the complete structure of its rank's state.
    """

    structure: Structure
    own: tuple[RankDocument, ...]
    of_ranks: tuple[Structure, ...]


def load_step(ranks: Ranks, recovered: Recovered) -> SavedStep:
    """The step as this rank restores it, from the documents of its parts (collective)."""
    comm, attempt = ranks.comm, recovered.attempt
    documents = share_documents(ranks, recovered)
    within = f"restore of step {attempt.step}, documents", ranks.timeout
    with collection_paused():
        return together(comm, lambda: saved_step(attempt, documents, comm.rank, comm.size), _FAILED, within)


def share_documents(ranks: Ranks, recovered: Recovered) -> Documents:
    """Share all documents with all ranks; of parts other than 0 only if any leaf or value is per rank (collective)."""
    what = f"restore of step {recovered.attempt.step}, documents"
    within, leader = (what, ranks.timeout), recovered.reads[0].reader
    mine = recovered.reader(0).meta if leader == ranks.rank else None
    text = ranks.finish(ranks.comm.broadcast(mine, leader), what)
    first, structure, complete = together(ranks.comm, lambda: _decoded_first(text, what), _FAILED, within)
    if not (structure.per_rank.any() or structure.has_rank_local):
        return Documents(structure, (first,), (complete,))
    texts = _others(ranks, recovered, what)
    others = together(ranks.comm, lambda: _decoded_others(texts, structure, what), _FAILED, within)
    own, of_ranks = zip((first, complete), *others, strict=True)
    return Documents(structure, own, of_ranks)


def _others(ranks: Ranks, recovered: Recovered, what: str) -> list[bytes]:
    """The documents of the parts from 1 on, in part order."""
    mine = {part: recovered.reader(part).meta for part in recovered.led_by(ranks.rank) if part}
    lengths = [(part, len(text)) for part, text in mine.items()]
    found: dict[int, bytes] = {}
    for parts, theirs in ranks.share(lengths, mine.values(), what):
        at = 0
        for part, length in parts:
            found[part] = theirs[at : at + length]
            at += length
    return [found[part] for part in range(1, recovered.attempt.world_size)]


def _decoded_first(text: bytes, what: str) -> tuple[RankDocument, Structure, Structure]:
    """The document of part 0, the structure document in it, and the structure of its rank's state."""
    document = decode_meta(text, f"{what}, part 0")
    if document.structure is None:
        raise CorruptFileError("part 0 carries no structure document", where=what)
    return document, document.structure, document.check(document.structure, f"{what}, part 0")


def _decoded_others(texts: Sequence[bytes], structure: Structure, what: str) -> list[tuple[RankDocument, Structure]]:
    """The documents of the parts from 1 on, and the structures of their ranks; equal texts are decoded once."""
    found: dict[bytes, tuple[RankDocument, Structure]] = {}
    with collection_paused():
        for part, text in enumerate(texts, start=1):
            if text not in found:
                document = decode_meta(text, f"{what}, part {part}")
                found[text] = document, document.check(structure, f"{what}, part {part}")
    return [found[text] for text in texts]


def rank_local_paths(documents: Sequence[RankDocument], global_state: GlobalState) -> list[RankLocalTree]:
    """The paths of all ranks' rank-local items that are not parts of one state."""
    found: dict[ExactPath, RankLocalTree] = {}
    for document in documents:
        for tree in document.trees:
            if not global_state.has_part(tree):
                found.setdefault(exact(tree.path), tree)
    return list(found.values())


def is_parameter_names(path: Path) -> bool:
    """True at ``param_groups/NUMBER/params`` of an optimizer's state: the names of a rank's parameters.

    They differ between ranks with different parts of the model; on other ranks the live optimizer's are used.
    """
    return len(path) >= 3 and path[-1] == "params" and path[-3] == "param_groups"


def content_at(document: RankDocument, structure: Structure, arrays: dict[int, Array], path: Path) -> Any:
    """The content of one rank's rank-local item at a path; None if it has none."""
    tree = next((tree for tree in document.trees if exact(tree.path) == exact(path)), None)
    if tree is None:
        return None
    own = replace(structure, aliases=document.aliases)
    lacking = frozenset(alias.owner for alias in own.aliases.values() if alias.owner not in arrays)
    target = Target(own, document.types, document.values, dropped=lacking | structure.divisions.keys())
    tie(target, arrays)
    return build(target, arrays, tree.node)
