"""The content of a step, as one rank of a restore sees it, with what is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deeppart.model import Attempt
from deeppart.part import SHARED_TABLE
from deeppart.recovery.documents import Documents, apart_paths
from deeppart.recovery.tables import PartIndexView
from deeppart.state.document.apart import OwnTree, without_apart
from deeppart.state.document.structure import SavedValue, Structure
from deeppart.state.restore.scatter import check_cover, check_places
from deeppart.state.tree.paths import Path, readable


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A step as this rank restores it.

    Attributes:
        attempt: that saved it.
        documents: of all parts.
        of_ranks: the structure of each part's rank, complete with what was its own; one alone where all are alike.
        apart: the paths at which anything stands apart on any rank.
        same_world: as many ranks restore it as saved it.
        structure: the structure that this rank restores.
        own_leaves: numbers of the leaves that are per rank.
        own_values: numbers of the values that are per rank.
    """

    attempt: Attempt
    documents: Documents
    of_ranks: tuple[Structure, ...]
    apart: tuple[OwnTree, ...]
    same_world: bool
    structure: Structure
    own_leaves: frozenset[int]
    own_values: frozenset[int]

    @property
    def any_own(self) -> bool:
        """Anything at all is per rank."""
        return bool(self.own_leaves or self.own_values or self.apart)

    def paths(self) -> list[Path]:
        """The path of each leaf, by number."""
        return self.structure.array_paths()

    def own_names(self) -> list[str]:
        """Readable paths of all that is per rank: leaves, values, and what stands apart."""
        paths = self.paths()
        names = [readable(paths[index]) for index in sorted(self.own_leaves)]
        names += [
            readable(path)
            for path, node in self.structure.walk()
            if isinstance(node, SavedValue) and node.index in self.own_values
        ]
        return names + [readable(tree.path) for tree in self.apart]


def saved_step(attempt: Attempt, documents: Documents, rank: int, size: int) -> SavedStep:
    """The step, for one of ``size`` ranks."""
    shared, where = documents.structure, f"step {attempt.step}"
    of_ranks = tuple(own.complete(shared, where) for own in documents.own)
    apart = apart_paths(documents.own)
    same_world = attempt.world_size == size
    structure = of_ranks[min(rank, len(of_ranks) - 1)] if same_world else without_apart(shared, apart)
    own_leaves = frozenset(np.flatnonzero(structure.per_rank).tolist())
    own_values = frozenset(np.flatnonzero(structure.per_rank_values).tolist())
    return SavedStep(attempt, documents, of_ranks, tuple(apart), same_world, structure, own_leaves, own_values)


def check_spans(saved: SavedStep, indexes: Sequence[PartIndexView]) -> None:
    """The parts' spans cover every leaf, once, and lie where the leaves are.

    Raises:
        CorruptFileError: they do not.
    """
    shared, where = saved.documents.structure, f"step {saved.attempt.step}"
    spans = [index.spans[index.spans["table"] == SHARED_TABLE] for index in indexes]
    wanted = {i for i in range(len(shared.types)) if i not in shared.aliases}
    for index in indexes:
        part = index.part if saved.any_own else 0
        raw_starts = np.zeros(len(index.lengths) + 1, dtype=np.uint64)
        np.cumsum(np.array(index.lengths, dtype=np.uint64), out=raw_starts[1:])
        marked = np.array(index.per_rank, dtype=np.bool_)
        places = index.spans, raw_starts, marked
        check_places(saved.of_ranks[part], saved.documents.own[part].types, *places, f"{where}, part {index.part}")
    replicated = wanted - set(np.flatnonzero(shared.per_rank).tolist())
    check_cover(list(shared.types), replicated, spans, where)
    if saved.any_own:
        for document, structure, index in zip(saved.documents.own, saved.of_ranks, indexes, strict=True):
            own = index.spans[index.spans["table"] != SHARED_TABLE]
            leaves = set(np.flatnonzero(structure.per_rank).tolist()) - structure.aliases.keys()
            check_cover(document.all_types(structure), leaves, [own], f"{where}, part {index.part}")
