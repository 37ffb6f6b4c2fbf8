"""The inventory after a failure: parts and parity on every node, and committed checkpoints. Pure records."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord

if TYPE_CHECKING:
    from deeppart.plan.restart.planner import Outlook


def on_node(text: str, rank: int) -> str:
    """A text about a file, with its node: others may have a file with the same path."""
    return f"{text} (node of rank {rank})"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A file as the ranks of one node see it: `local_dir` usually has the same path on all nodes.

    Attributes:
        rank: the lowest of the ranks that read it.
        path: the file; for a rebuild, the name of a parity set.
    """

    rank: int
    path: str

    def __str__(self) -> str:
        return on_node(self.path, self.rank)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part found on a level, whose header, footer and index were checked, and whose chunks were not read.

    Attributes:
        level: "memory", "local", "partner" or "persistent".
        attempt, rank: the attempt and rank that saved it.
        path: the file, as seen by the process that found it.
        nbytes: length of the file.
        index_digest: xxh3-128 of the index, 32 hex digits.
        written: when it was written, in seconds since 1970, according to its file.
        content_digest: the same for two encodings of the same bytes; "" if unknown.
        raw_bytes: decoded length of the part; 0 if unknown.
    """

    level: str
    attempt: Attempt
    rank: int
    path: str
    nbytes: int
    index_digest: str
    written: float = 0.0
    content_digest: str = ""
    raw_bytes: int = 0

    def to_json(self) -> list[Any]:
        """For sending to other ranks."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, document: list[Any]) -> StoredPart:
        """Inverse of :meth:`to_json`."""
        level, identity, *rest = document
        return cls(level, Attempt(*identity), *rest)


@dataclass(frozen=True, slots=True)
class StoredParity:
    """A parity file found on a node, whose header, footer and index were checked, and whose blocks were not read.

    Attributes:
        identity: the set, and the member whose share it is.
        path: the file, as seen by the process that found it.
        nbytes: length of the file.
    """

    identity: ParityIdentity
    path: str
    nbytes: int

    def to_json(self) -> list[Any]:
        """For sending to other ranks."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, document: list[Any]) -> StoredParity:
        """Inverse of :meth:`to_json`."""
        (attempt, members, *numbers), path, nbytes = document
        records = tuple(ParityMember(*member) for member in members)
        return cls(ParityIdentity(Attempt(*attempt), records, *numbers), path, nbytes)


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed checkpoint on the persistent level.

    Attributes:
        attempt: the attempt.
        directory: its step directory.
        parts: the entries of its manifest, in rank order.
        created: UTC time of the commit, ISO 8601, as its manifest says.
    """

    attempt: Attempt
    directory: str
    parts: tuple[PartRecord, ...]
    created: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All files that a restart can use.

    Attributes:
        found: for each rank, parts on its node's storage. All ranks of the node can read them; of ranks that share a
            directory only one lists it.
        node_of: node number of each rank.
        committed: checkpoints on the persistent level.
        problems: readable lines about damaged or incomplete items, which are ignored.
        damaged: readable lines about committed checkpoints with unreadable manifests.
        parity: for each rank, parity on its node's storage, listed like ``found``; () if there is none anywhere.
        unusable: step -> reason, for committed checkpoints with unusable manifests.
        unread: the ``problems`` about nodes' storage that could not be listed or read, so that its files are unknown.
        since: steps with lower numbers were not looked for on the persistent level; None: all were.
    """

    found: tuple[tuple[StoredPart, ...], ...]
    node_of: tuple[int, ...]
    committed: tuple[Committed, ...]
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    parity: tuple[tuple[StoredParity, ...], ...] = ()
    unusable: tuple[tuple[int, str], ...] = ()
    unread: tuple[str, ...] = ()
    since: int | None = None
    #: Of :func:`deeppart.plan.restart.planner.survey`, by the step that was asked for.
    outlooks: dict[int | None, Outlook] = field(default_factory=dict, init=False, repr=False, compare=False)
    _first_of_node: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for rank, node in enumerate(self.node_of):
            self._first_of_node.setdefault(node, rank)

    def location(self, rank: int, path: str) -> Location:
        """The location of a file on the node of a rank."""
        return Location(self._first_of_node[self.node_of[rank]], path)
