"""Which chunks of a step a restore has to read, where only some of the state is asked for.

Who reads a part decides by the names that its leaves have in its document, and by the live state of its own rank. That
may be more than is needed. Where ranks have other names in their live states it may be less: once all of them are
matched, :mod:`deeppart.recovery.apply` tells, and then the step is read whole.
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

#: Keys of the outermost dict of live states; None where everything is asked for.
Outermost = Collection[IdKey] | None


class NarrowReading:
    """What of a step is asked for, as one rank sees it before anything is read."""

    def __init__(self, live: Node, request: Request, outermost: Outermost) -> None:
        # What a function of the caller leaves out is asked once, when the live state is matched.
        self._request = replace(request, strict=request.strict if isinstance(request.strict, bool) else True)
        self._live, self._outermost = live, outermost

    @property
    def may_choose(self) -> bool:
        """True if any step can have something that is not asked for; the same on all ranks."""
        request = self._request
        return request.keys is not None or bool(request.exclude) or self._outermost is not None

    def choose(
        self, comm: Comm, leader: int, attempt: Attempt, readers: Mapping[int, PartReader], run: Run
    ) -> dict[int, Chosen]:
        """Which chunks to read of the parts that this rank has opened; all of those not named (collective)."""
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
        except Exception:  # of any kind: damage is reported when the documents are decoded
            return {}

    def _is_less(self, reader: PartReader) -> bool:
        """True if the step may have leaves that are not asked for."""
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
        """By number, whether a leaf of one rank is asked for."""
        asked = np.zeros(len(structure.types), dtype=np.bool_)
        values = decode_values(structure, where)
        chosen = choose(structure.tree, self._live, values, self._request, self._outermost)
        for _, node in walk_tree(chosen.tree, ()):
            if isinstance(node, ArrayLeaf):
                asked[node.index] = True
        if not same_world:  # what each old rank had for itself is brought as a whole, to be mapped
            asked |= structure.per_rank
        owners = [alias.owner for index, alias in structure.aliases.items() if asked[index]]
        asked[owners] = True
        return asked
