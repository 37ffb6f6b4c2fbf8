"""Are the shards in all parts together the whole tensors?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError, FormatError
from deeppart.offline.inspect.parts import OpenPart, own_spans
from deeppart.part import SPAN_DTYPE
from deeppart.state.document.structure import SavedApart, Structure
from deeppart.state.document.whole import Wholes, gather_wholes
from deeppart.state.restore.scatter import OwnSpans, check_bytes

_NOTHING = Structure(SavedApart(), (), np.zeros(0, dtype=np.bool_))


class ShardCover:
    """Takes in part after part."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._of_ranks: dict[int, Structure] = {}
        self._spans: dict[int, npt.NDArray[np.void]] = {}

    def of_part(self, part: OpenPart, structure: Structure) -> frozenset[int]:
        """Take in a part; returns the numbers of the leaves in it that are shards."""
        try:
            found = part.own.complete(structure, self._where)
        except FormatError:  # told where the document is checked
            return frozenset()
        self._of_ranks[part.record.rank] = found
        self._spans[part.record.rank] = own_spans(part.reader)
        return found.shard_leaves()

    def faults(self, parts: int) -> Iterator[tuple[str, str]]:
        """Name of each tensor that is not whole, and why."""
        ranks = range(parts)
        try:
            wholes = gather_wholes([self._of_ranks.get(rank, _NOTHING) for rank in ranks], (), self._where)
        except CorruptFileError as error:
            yield "(sharded tensors)", f"{error.summary} ({error.found})"
            return
        nothing = np.zeros(0, dtype=SPAN_DTYPE)
        spans = [OwnSpans(self._spans.get(rank, nothing)) for rank in ranks]
        for key, tensor in wholes.tensors.items():
            try:
                Wholes({key: tensor}).check(self._where)
                check_bytes(tensor, spans, self._where)
            except CorruptFileError as error:
                yield tensor.name, f"{error.summary} ({error.found})"
