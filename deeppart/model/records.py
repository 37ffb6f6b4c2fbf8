"""The basic terms of deeppart as frozen records: leaf, span, share, part, manifest.

Pure data: no I/O, no torch, no MPI. Units are in the names; every length is in bytes unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """A storage level. Each member is, and prints as, the string that ``every``, ``keep`` and ``Pending.wait`` take."""

    LOCAL = "local"
    PARTNER = "partner"
    PARITY = "parity"
    PERSISTENT = "persistent"

    __repr__ = str.__repr__


#: The storage levels, cheapest first.
LEVELS: tuple[str, ...] = tuple(Level)
#: Where a restore finds parts besides: in staging memory that has outlived its rank. No level: nothing waits for it.
MEMORY = "memory"
#: Levels on nodes' storage that protect against the loss of a node; they copy or encode the local level's parts.
REDUNDANT_LEVELS: tuple[str, ...] = (Level.PARTNER, Level.PARITY)
#: How many steps are kept at each level, by default.
DEFAULT_KEEP: Mapping[str, int] = {Level.LOCAL: 1, Level.PARTNER: 1, Level.PARITY: 1, Level.PERSISTENT: 3}
#: Checkpoints that may be in the pipeline at once: one being flushed, one being stored or waiting to be flushed.
MOST_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """The description of one leaf with bytes, for the partitioner.

    Attributes:
        path: readable path of the leaf in the state, components joined by ``/`` (RFC 6901 escapes inside components).
        nbytes: size of the leaf's elements in bytes, >= 0.
        itemsize: element size in bytes, >= 1; spans of the leaf begin and end at multiples of it.

    Example:
        >>> from deeppart.partition import LeafSpec
        >>> LeafSpec("model/weight", nbytes=4000, itemsize=4)
        LeafSpec(path='model/weight', nbytes=4000, itemsize=4)
    """

    path: str
    nbytes: int
    itemsize: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a leaf: ``[start, start + length)`` in the leaf's C-order elements.

    Attributes:
        leaf: index of the leaf in the list given to the partitioner.
        start: first byte, a multiple of the leaf's element size.
        length: number of bytes, a multiple of the leaf's element size.

    Example:
        >>> from deeppart.partition import LeafSpec, partition
        >>> partition([LeafSpec("weight", 400_000, itemsize=4)], ranks=2, kappa=0).share(1).spans
        (Span(leaf=0, start=200000, length=200000),)
    """

    leaf: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Share:
    """The spans one rank saves, in ascending (leaf, start) order.

    Attributes:
        rank: whose share it is.
        spans: the byte ranges of leaves.

    Example:
        >>> from deeppart.partition import LeafSpec, partition
        >>> plan = partition([LeafSpec("a", 3000), LeafSpec("b", 1000)], ranks=2, kappa=0)
        >>> [share.nbytes for share in plan.shares()]
        [2000, 2000]
    """

    rank: int
    spans: tuple[Span, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in this share."""
        return sum(span.length for span in self.spans)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of one ``checkpoint()`` call of one job: parts of different attempts are never mixed.

    Attributes:
        lineage: 32 hex digits naming the chain of restarts that shares one persistent directory.
        session: 32 hex digits naming one run of the job.
        sequence: count of checkpoints in this session, from 0.
        step: the user's step number.
        world_size: number of ranks, and so of parts.
    """

    lineage: str
    session: str
    sequence: int
    step: int
    world_size: int

    @property
    def key(self) -> StepKey:
        """The key of its step directories."""
        return StepKey(self.step, self.session, self.sequence)


@dataclass(frozen=True, slots=True, order=True)
class StepKey:
    """The key of a step directory, the same at every level; unique to a session.

    Attributes:
        step: the user's step number.
        session: 32 hex digits of the run of the job that writes it.
        sequence: count of checkpoints in that session, from 0.
    """

    step: int
    session: str
    sequence: int


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """An earlier part of the same rank and session with chunks of a part: its *base*.

    Attributes:
        index_digest: xxh3-128 of the base's index, 32 hex digits.
        nbytes: length of its file.
        step, sequence: of the checkpoint for which it was written.
    """

    index_digest: str
    nbytes: int
    step: int
    sequence: int

    def key(self, session: str) -> StepKey:
        """The key of the base's step directory."""
        return StepKey(self.step, session, self.sequence)


@dataclass(frozen=True, slots=True)
class PartRecord:
    """The manifest's entry for one part file.

    Attributes:
        rank: the rank that wrote the part.
        file: file name inside the step directory.
        nbytes: length of the file.
        raw_bytes: bytes of the share before encoding.
        digest: xxh3-128 of the whole file, 32 hex digits.
        index_digest: xxh3-128 of the file's index, 32 hex digits; the index has every chunk's digest.
        node_index_digest: the same for the part on nodes, if it is encoded differently; otherwise "".
        referenced_bytes: encoded bytes of the part in its bases.
        bases: earlier parts with these bytes.
    """

    rank: int
    file: str
    nbytes: int
    raw_bytes: int
    digest: str
    index_digest: str
    node_index_digest: str = ""
    referenced_bytes: int = 0
    bases: tuple[BaseRecord, ...] = ()

    @classmethod
    def from_json(cls, fields: list[Any]) -> PartRecord:
        """Inverse of ``dataclasses.astuple``, by way of JSON."""
        *rest, bases = fields
        return replace(cls(*rest), bases=tuple(BaseRecord(*base) for base in bases))

    @property
    def index_digests(self) -> frozenset[str]:
        """The valid index digests of a file with this part's bytes."""
        return frozenset({self.index_digest, self.node_index_digest} - {""})


@dataclass(frozen=True, slots=True)
class ParityMember:
    """The entry of a parity file for one member of its set.

    Attributes:
        part: the encoded part; None if this member had none and only stores parity.
        nbytes: length of the part file; 0 without one.
        index_digest: xxh3-128 of the part file's index, 32 hex digits; "" without one.
    """

    part: int | None
    nbytes: int
    index_digest: str


@dataclass(frozen=True, slots=True)
class ParityIdentity:
    """The identity of a parity file: a parity set of a checkpoint, and a member's share of it.

    Attributes:
        attempt: the attempt to which the parts belong.
        members: all members of the set, in order.
        tolerate: how many of them may be lost.
        block_bytes: length of a full block (see ``deeppart.plan.redundancy``).
        place: the member whose share this is: an index into ``members``.
    """

    attempt: Attempt
    members: tuple[ParityMember, ...]
    tolerate: int
    block_bytes: int
    place: int

    @property
    def longest_bytes(self) -> int:
        """Length of the longest part."""
        return max(member.nbytes for member in self.members)


@dataclass(frozen=True, slots=True)
class ComparedEarlier:
    """Replicated leaves that were not compared in full between the ranks when they were saved.

    Attributes:
        step: the step at which all of them were last compared in full; None if never.
        ranges: (first leaf, how many), by leaf number: ascending, not adjacent.
    """

    step: int | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SuspectLeaf:
    """A leaf that was saved once for all ranks although they may have had different bytes of it.

    Attributes:
        path: its path.
        ranks: a text that says which ranks were found to differ.
        after: sequence of the checkpoint at which it was last compared in full.
        after_step: the step of that checkpoint.
    """

    path: str
    ranks: str
    after: int
    after_step: int

    def __str__(self) -> str:
        return f"{self.path} (last compared in full at step {self.after_step}, then found: {self.ranks})"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The suspect leaves that a session has found in its earlier checkpoints.

    Attributes:
        lineage, session: of the job.
        sequence, step: of the checkpoint that found the difference.
        steps: of the checkpoints that are suspect for at least one of the leaves.
        leaves: the leaves that differ.
    """

    lineage: str
    session: str
    sequence: int
    step: int
    steps: tuple[int, ...]
    leaves: tuple[SuspectLeaf, ...]

    def leaves_of(self, attempt: Attempt) -> tuple[SuspectLeaf, ...]:
        """The leaves for which a checkpoint is suspect."""
        if (attempt.lineage, attempt.session) != (self.lineage, self.session):
            return ()
        return tuple(leaf for leaf in self.leaves if leaf.after < attempt.sequence < self.sequence)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of one complete checkpoint. When it appears in the step directory, the step is committed.

    Attributes:
        attempt: the ``checkpoint()`` call.
        created: UTC time of the commit, ISO 8601.
        library: name and version of the writer.
        parts: one record per rank, in rank order.
        structure: the state's structure document (see ``deeppart.state.document.structure``), JSON-like.
        compared: the replicated leaves that were last compared in full before this step, by that step; the others were
            compared at this step.
        signed: true if the file from which it was read has a signature, checked or not.
    """

    attempt: Attempt
    created: str
    library: str
    parts: tuple[PartRecord, ...]
    structure: dict[str, Any]
    compared: tuple[ComparedEarlier, ...] = ()
    signed: bool = field(default=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all part files."""
        return sum(part.nbytes for part in self.parts)

    @property
    def referenced_bytes(self) -> int:
        """Bytes in earlier parts that belong to the checkpoint, too."""
        return sum(part.referenced_bytes for part in self.parts)

    @property
    def needed_parts(self) -> frozenset[tuple[StepKey, int]]:
        """Step and rank of the parts of other steps to which this step refers."""
        session = self.attempt.session
        return frozenset((base.key(session), part.rank) for part in self.parts for base in part.bases)
