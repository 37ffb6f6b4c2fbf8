"""The content of a checkpoint with statistics of its leaves; every chunk of these is read, and its digest checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from deeppart.errors import FormatError, StorageError
from deeppart.offline.batches import batches, read_sound, repeats
from deeppart.offline.inspect.contents import Contents, Leaf, read_contents
from deeppart.offline.load import OpenCheckpoint
from deeppart.offline.statistics import Gathering, Stats, has_statistics
from deeppart.part import Signing
from deeppart.state.document.structure import SavedArray
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import ExactPath, exact
from deeppart.storage.node import one_line
from deeppart.storage.steps import MOST_LOOKS, step_is_retired

Progress = Callable[[int, int], None]

#: A leaf, and the rank that has saved it for itself; None if it is no rank's own.
_Owner = tuple[ExactPath, int | None]


@dataclass(slots=True)
class Statistics:
    """Statistics of the leaves of a checkpoint.

    Attributes:
        problems: lines about leaves that cannot be read, of which there are none.
    """

    problems: tuple[str, ...] = ()
    _found: dict[_Owner, tuple[LeafType, Gathering]] = field(default_factory=dict)

    def of(self, leaf: Leaf, rank: int | None = None) -> Stats | None:
        """Statistics of a leaf; of what one rank has saved for itself, or else of all ranks' together."""
        ranks = [rank] if rank is not None else [None] if leaf.per_rank is None else list(leaf.per_rank)
        found = [self._found.get((leaf.key, each)) for each in ranks]
        known = [each for each in found if each is not None]
        if len(known) < len(ranks) or len({(kind.kind, kind.dtype) for kind, _ in known}) != 1:
            return None
        together = Gathering()
        for _, gathering in known:
            together.add(gathering)
        return together.result()


def read_statistics(
    root: Path, step: int | None, keys: Sequence[str], signing: Signing | None, progress: Progress
) -> tuple[Contents, Statistics]:
    """:func:`~deeppart.offline.inspect.contents.read_contents`, and statistics of all leaves in it.

    At most 256 MiB of leaves, or one leaf, are in memory at a time.
    """
    for look in range(MOST_LOOKS):
        contents = read_contents(root, step, keys, signing)
        try:
            return contents, _read(contents, signing, progress)
        except StorageError:
            # a job that is running may have committed the next step and removed this one
            if step is not None or look == MOST_LOOKS - 1 or not step_is_retired(contents.directory):
                raise
    raise AssertionError("the last look returns or raises")


def _read(contents: Contents, signing: Signing | None, progress: Progress) -> Statistics:
    leaves = [leaf for leaf in contents.leaves() if isinstance(leaf, Leaf)]
    wanted: dict[int | None, set[ExactPath]] = {}
    for leaf in leaves:
        for rank in [None] if leaf.per_rank is None else leaf.per_rank:
            wanted.setdefault(rank, set()).add(leaf.key)
    reading = _Reading(sum(leaf.nbytes if leaf.per_rank is None else leaf.stored_bytes for leaf in leaves), progress)
    with ExitStack() as files:
        try:
            checkpoint = OpenCheckpoint(files, contents.directory, contents.manifest, signing=signing)
        except (FormatError, StorageError) as error:
            if step_is_retired(contents.directory):
                raise
            return Statistics((f"no statistics: {one_line(error)}",))
        for rank in sorted(wanted, key=lambda rank: -1 if rank is None else rank):
            reading.read(checkpoint.as_rank(rank or 0), rank, wanted[rank])
    return Statistics(tuple(reading.problems), reading.found)


class _Reading:
    """The reading of leaves under way."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self.found: dict[_Owner, tuple[LeafType, Gathering]] = {}
        self.problems: list[str] = []

    def read(self, checkpoint: OpenCheckpoint, rank: int | None, wanted: set[ExactPath]) -> None:
        """Read leaves as one rank has saved them."""
        types = checkpoint.target.types
        places = {
            node.index: key
            for path, node in checkpoint.structure.walk()
            if isinstance(node, SavedArray) and (key := exact(path)) in wanted
        }
        numbers = {leaf for leaf in places if has_statistics(types[leaf])}
        refused = {leaf: error for leaf in sorted(numbers) if (error := repeats(checkpoint, leaf)) is not None}
        self.problems += map(one_line, refused.values())
        for batch in batches(checkpoint, numbers - refused.keys()):
            self._gather(checkpoint, batch, {leaf: (places[leaf], rank) for leaf in batch})
            self._done += sum(types[leaf].nbytes for leaf in batch)
            self._progress(self._done, self._total)

    def _gather(self, checkpoint: OpenCheckpoint, batch: set[int], owners: dict[int, _Owner]) -> None:
        """Read a batch, whose arrays are gone before the next one is read."""
        arrays, damaged = read_sound(checkpoint, batch)
        self.problems += dict.fromkeys(map(one_line, damaged.values()))
        for leaf, array in arrays.items():
            kind, gathering = checkpoint.target.types[leaf], Gathering()
            gathering.take(array, kind)
            self.found[owners[leaf]] = kind, gathering
