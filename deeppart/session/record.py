"""The record of one run of a job: its ranks, channels and open directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.comm import Comm
from deeppart.config import Config
from deeppart.errors import CommError
from deeppart.mapped import forget_all
from deeppart.model import StepKey
from deeppart.nodes import Arena, Protection
from deeppart.part import FileSource, StoredBytes
from deeppart.recovery import Ranks
from deeppart.save import Processors
from deeppart.session.topology import Topology
from deeppart.storage import DirectoryOwner, MemoryLevel, NodeLevel, PersistentLevel, RateLimit


@dataclass(slots=True)
class Session:
    """One run of a job.

    Attributes:
        config: the configuration.
        comm: channel of the training thread.
        channels: level name -> channel for its exchanges; also "scrub", if that is on.
        topology: ranks and nodes.
        lineage, session: identities, 32 hex digits each.
        owner: lock of the persistent directory, on rank 0.
        node_levels: the enabled levels on this node's storage, by name; {} without a ``local_dir``.
        persistent: the persistent level.
        protection: which nodes protect each other.
        limit: limits this rank's background writes and sends, or None.
        committed: steps committed on the persistent level at start-up.
        earlier: level name -> all steps of earlier sessions at start-up. A session removes only these and its own.
        processors: the processors that encode chunks.
        directory: ``persistent_dir``.
        roots: the open directories.
        telemetry_files: ``metrics_file`` and ``events_file`` -> this rank's file, if set.
        memory: where shares are staged under ``deeppart run``.
    """

    config: Config
    comm: Comm
    channels: dict[str, Comm]
    topology: Topology
    lineage: str
    session: str
    owner: DirectoryOwner | None
    node_levels: dict[str, NodeLevel]
    persistent: PersistentLevel
    protection: Protection
    limit: RateLimit | None
    committed: set[StepKey]
    earlier: dict[str, set[StepKey]]
    processors: Processors
    directory: Path
    roots: access.Roots
    telemetry_files: Mapping[str, Path]
    memory: MemoryLevel | None

    @property
    def leads_directory(self) -> bool:
        """True if this is the first of the ranks that share its local directory, which lists and cleans it."""
        return bool(self.node_levels) and self.topology.first_in_directory(self.comm.rank) == self.comm.rank

    def ranks(self, arena: Arena | None = None) -> Ranks:
        """The ranks, as they restore a step; ``arena``: memory for that, if not of its own."""
        return Ranks(
            self.comm,
            self.topology.node_of,
            self.config.timeout,
            signing=self.persistent.signing,
            threads=self.processors.waiting,
            at=self.roots.at,
            open_source=self.open_source,
            arena=arena or Arena(),
        )

    def open_source(self, where: str) -> StoredBytes:
        """Open a file of a checkpoint, given by its location in text form, as ranks exchange it."""
        store, prefix = self.persistent.store, f"{self.persistent.store.where()}/"
        return store.open(where.removeprefix(prefix)) if where.startswith(prefix) else FileSource(self.roots.at(where))

    def drop_spares(self) -> None:
        """Free storage and mappings on this node that were kept for the next checkpoint."""
        forget_all()
        if self.leads_directory:
            for level in self.node_levels.values():
                level.recycled.drop()

    def abandon(self) -> None:
        """Close the session because of an error on this rank alone; the other ranks are notified."""
        for channel in (*self.channels.values(), self.comm):
            channel.abandon(CommError("the start of a checkpointer has failed"))
        self.close()

    def close(self) -> None:
        """Release the directory and the channels, once the session has no background work left."""
        if self.owner is not None:
            self.owner.close()
        self.roots.close()
        if self.memory is not None:
            self.memory.close()
        if self.comm.broken is not None:  # a late rank may still be in an exchange that the others have abandoned
            for channel in self.channels.values():
                channel.abandon(CommError("the session has ended by an error", found=self.comm.broken.summary))
        for channel in (*self.channels.values(), self.comm):
            channel.release()
