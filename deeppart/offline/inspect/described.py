"""What a committed checkpoint contains: records for whoever shows it (:mod:`deeppart.offline.inspect.contents`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppart.model import Manifest, SuspectLeaf
from deeppart.model.boxes import Box
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import ExactPath


@dataclass(frozen=True, slots=True)
class Holding:
    """A part holds bytes ``[start, start + length)`` of a leaf."""

    rank: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or array.

    Attributes:
        path: components joined by ``/``.
        type: dtype and shape; of rank 0 where every rank has its own.
        per_rank: None if replicated, otherwise rank -> type, for the ranks whose parts could be read.
        alias_of: path of the leaf whose bytes it shares, or None.
        holdings: which parts hold it, by rank; for a leaf per rank, each rank's whole copy.
        compared: the step at which all of it was last compared between the ranks; None if never, if that is not known,
            or for a leaf per rank or a sharded one.
        shards: None if it is not sharded, otherwise the boxes that ranks had of it; ``holdings`` count the bytes of
            each.
        differing: the boxes of which ranks did not have the same bytes, and which rank's are saved.
        key: the path with the type of each key, which no two leaves of one rank have in common.
    """

    path: str
    type: LeafType
    per_rank: dict[int, LeafType] | None
    alias_of: str | None
    holdings: tuple[Holding, ...]
    compared: int | None = None
    shards: tuple[Box, ...] | None = None
    differing: tuple[tuple[int, Box], ...] = ()
    key: ExactPath = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return self.type.nbytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of all copies in the checkpoint, before encoding; 0 for an alias."""
        if self.alias_of is not None:
            return 0
        if self.shards is not None:
            again = sum(box.elements for _, box in self.differing) - sum(box.elements for box in self.boxes_that_differ)
            return self.nbytes + again * self.type.itemsize
        return self.nbytes if self.per_rank is None else sum(kind.nbytes for kind in self.per_rank.values())

    @property
    def boxes_that_differ(self) -> set[Box]:
        """The boxes of ``differing``, each once."""
        return {box for _, box in self.differing}


@dataclass(frozen=True, slots=True)
class Value:
    """A small value.

    Attributes:
        path: components joined by ``/``.
        value: the value; None where every rank has its own.
        per_rank: None if replicated, otherwise rank -> value, for the ranks whose parts could be read.
    """

    path: str
    value: Any
    per_rank: dict[int, Any] | None


@dataclass(frozen=True, slots=True)
class Container:
    """A dict, list, tuple, namedtuple or object.

    Attributes:
        kind: as :class:`deeppart.state.document.structure.SavedBranch`.
        name: type name of a namedtuple or object.
        children: (key as text, what is there), in the order saved.
    """

    kind: str
    name: str
    children: tuple[tuple[str, Node], ...]


Node = Container | Leaf | Value


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint, or the leaves of it that were asked for.

    Attributes:
        directory: of the step.
        manifest: of the step.
        tree: the nesting, as saved.
        problems: parts whose index could not be read, one line each.
        suspect: leaves that ranks may not have held alike when it was saved.
        unreadable_suspect_records: lines about records that may name more of them.
        passed_over: lines about newer steps that cannot be used.
    """

    directory: Path
    manifest: Manifest
    tree: Node
    problems: tuple[str, ...]
    suspect: tuple[SuspectLeaf, ...] = ()
    unreadable_suspect_records: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    def leaves(self) -> Iterator[Leaf | Value]:
        """Every leaf and value, in the order of the tree."""
        yield from _walk(self.tree)


def _walk(node: Node) -> Iterator[Leaf | Value]:
    if isinstance(node, Container):
        for _, child in node.children:
            yield from _walk(child)
    else:
        yield node
