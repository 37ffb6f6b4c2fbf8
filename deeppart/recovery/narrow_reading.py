"""Selects the chunks that a restore has to read if only some of the state is requested.

The rank that reads a part decides by the names in its document and by its own live state. That may be more than needed,
or less if live states of ranks have different names: :mod:`deeppart.recovery.apply` finds out once all are matched, and
then the whole step is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.comm import Comm
from deeppart.model import Attempt
from deeppart.part import PartReader
from deeppart.recovery.inventory import Run
from deeppart.recovery.parts import Chosen
from deeppart.state.document import Structure, decode_meta, saved_outermost
from deeppart.state.paths import IdKey, id_keys
from deeppart.state.pieces import PartPieces
from deeppart.state.restore import Request, choose, decode_values
from deeppart.state.tree import ArrayLeaf, Node, walk_tree

#: Keys of the outermost dict of live states; None if everything is requested.
Outermost = Collection[IdKey] | None


class NarrowReading:
    """The request for a step, as one rank knows it before anything is read."""

    def __init__(self, live: Node, request: Request, outermost: Outermost) -> None:
        # A function given as `strict` is only called once, when the live state is matched.
        self._request = replace(request, strict=request.strict if isinstance(request.strict, bool) else True)
        self._live, self._outermost = live, outermost

    @property
    def may_choose(self) -> bool:
        """True if less than a whole step may be requested; the same on all ranks."""
        request = self._request
        return request.keys is not None or bool(request.exclude) or self._outermost is not None

    def choose(
        self, comm: Comm, leader: int, attempt: Attempt, readers: Mapping[int, PartReader], run: Run
    ) -> dict[int, Chosen]:
        """The chunks to read of each part that this rank has opened; all chunks of parts not in it (collective)."""
        what = f"step {attempt.step}, structure"
        text = b""
        if comm.rank == leader and 0 in readers and self._is_less(readers[0]):
            text = readers[0].meta
        text = run(comm.broadcast(text if comm.rank == leader else None, leader), what)
        if not text:
            return {}
        try:
            with collection_paused():
                return self._chosen(text, attempt.world_size == comm.size, readers)
        except Exception:  # of any type: damage is reported when the documents are decoded
            return {}

    def _is_less(self, reader: PartReader) -> bool:
        """True if the step may have leaves that are not requested."""
        if self._request.keys is not None or self._request.exclude:
            return True
        try:
            names, outermost = saved_outermost(reader.meta), self._outermost
        except Exception:  # as above
            return False
        return outermost is not None and any(key not in outermost for key in id_keys(names))

    def _chosen(self, text: bytes, same_world: bool, readers: Mapping[int, PartReader]) -> dict[int, Chosen]:
        first = decode_meta(text, "part 0")
        shared = first.structure
        if shared is None:
            return {}
        alike = not (shared.per_rank.any() or shared.has_rank_local)
        found: dict[int, Chosen] = {}
        asked = self._asked(shared, same_world, "part 0") if alike else None
        for part, reader in readers.items():
            if asked is None:
                where = f"part {part}"
                document = decode_meta(reader.meta, where, with_structure=False) if part else first
                mine = self._asked(document.complete(shared, where), same_world, where)
            else:
                mine = asked
            chosen = PartPieces(reader.spans, reader.raw_starts).chunks_with(mine[reader.spans["leaf"]])
            if not chosen.all():
                found[part] = chosen
        return found

    def _asked(self, structure: Structure, same_world: bool, where: str) -> npt.NDArray[np.bool_]:
        """By number, whether a leaf of one rank is requested."""
        asked = np.zeros(len(structure.types), dtype=np.bool_)
        values = decode_values(structure, where)
        chosen = choose(structure.tree, self._live, values, self._request, self._outermost)
        for _, node in walk_tree(chosen.tree, ()):
            if isinstance(node, ArrayLeaf):
                asked[node.index] = True
        if not same_world:  # per-rank items of the old ranks are read whole, to be mapped
            asked |= structure.per_rank
        owners = [alias.owner for index, alias in structure.aliases.items() if asked[index]]
        asked[owners] = True
        return asked
