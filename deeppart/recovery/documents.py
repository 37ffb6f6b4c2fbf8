"""The documents of a step's parts: what all ranks share, and what each saved for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deeppart._gc import collection_paused
from deeppart.comm.agreement import together
from deeppart.errors import CorruptFileError
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.state.document.part_document import OwnDocument, OwnTree, decode_meta
from deeppart.state.document.structure import Structure
from deeppart.state.document.whole import Wholes
from deeppart.state.restore.merge import build, tie
from deeppart.state.restore.target import Target
from deeppart.state.tree.leaves import Array
from deeppart.state.tree.paths import ExactPath, Path, exact

_FAILED = "the documents of a step could not be taken in"


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of all parts.

    Attributes:
        structure: of rank 0's part.
        own: per part, what is its rank's own.
        of_ranks: per part, the structure of its rank's state, complete with that.
    """

    structure: Structure
    own: tuple[OwnDocument, ...]
    of_ranks: tuple[Structure, ...]


def share_documents(ranks: Ranks, recovered: Recovered, text: bytes) -> Documents:
    """All documents on all ranks; those of parts other than 0 only if any leaf or value is per rank (collective)."""
    what = f"restore of step {recovered.attempt.step}, documents"
    within = what, ranks.timeout
    first, structure, complete = together(ranks.comm, lambda: _decoded_first(text, what), _FAILED, within)
    if not (structure.per_rank.any() or structure.per_rank_values.any() or structure.has_apart):
        return Documents(structure, (first,), (complete,))
    texts = _others(ranks, recovered, what)
    others = together(ranks.comm, lambda: _decoded_others(texts, structure, what), _FAILED, within)
    own, of_ranks = zip((first, complete), *others, strict=True)
    return Documents(structure, own, of_ranks)


def _others(ranks: Ranks, recovered: Recovered, what: str) -> list[bytes]:
    """The documents of the parts from 1 on, in part order."""
    mine = {part: loaded.reader.meta for part, loaded in recovered.led_by(ranks.rank).items() if part}
    lengths = [(part, len(text)) for part, text in mine.items()]
    found: dict[int, bytes] = {}
    for parts, theirs in ranks.share(lengths, mine.values(), what):
        at = 0
        for part, length in parts:
            found[part] = theirs[at : at + length]
            at += length
    return [found[part] for part in range(1, recovered.attempt.world_size)]


def _decoded_first(text: bytes, what: str) -> tuple[OwnDocument, Structure, Structure]:
    """The document of part 0, the structure that it carries for all, and that of its rank."""
    document = decode_meta(text, f"{what}, part 0")
    if document.structure is None:
        raise CorruptFileError("part 0 carries no structure document", where=what)
    return document, document.structure, document.check(document.structure, f"{what}, part 0")


def _decoded_others(texts: Sequence[bytes], structure: Structure, what: str) -> list[tuple[OwnDocument, Structure]]:
    """The documents of the parts from 1 on, and the structures of their ranks."""
    found: list[tuple[OwnDocument, Structure]] = []
    with collection_paused():
        for part, text in enumerate(texts, start=1):
            document = decode_meta(text, f"{what}, part {part}")
            found.append((document, document.check(structure, f"{what}, part {part}")))
    return found


def apart_paths(documents: Sequence[OwnDocument], wholes: Wholes) -> list[OwnTree]:
    """The paths at which anything stands apart on any rank that is its own, and no part of one state."""
    found: dict[ExactPath, OwnTree] = {}
    for document in documents:
        for tree in document.trees:
            if not wholes.has_part(tree):
                found.setdefault(exact(tree.path), tree)
    return list(found.values())


def is_parameter_names(path: Path) -> bool:
    """True at ``param_groups/NUMBER/params`` of an optimizer's state: names of the parameters that a rank has.

    Ranks with other parts of the model have other ones, and on other ranks they are those of the live optimizer.
    """
    return len(path) >= 3 and path[-1] == "params" and path[-3] == "param_groups"


def content_at(document: OwnDocument, structure: Structure, arrays: dict[int, Array], path: Path) -> Any:
    """The content that one rank had at a path that is apart; None if nothing."""
    tree = next((tree for tree in document.trees if exact(tree.path) == exact(path)), None)
    if tree is None:
        return None
    values = [document.values.get(index) for index in range(len(structure.values))]
    own = replace(structure, aliases=document.aliases)
    lacking = frozenset(alias.owner for alias in own.aliases.values() if alias.owner not in arrays)
    target = Target(own, document.all_types(structure), values, dropped=lacking)
    tie(target, arrays)
    return build(target, arrays, tree.node)
