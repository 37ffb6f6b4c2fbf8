"""Creates the background of an open session: pipeline, retention, scrubber, and the writer of suspect records."""

from __future__ import annotations

from deeppart.model import Attempt, Level
from deeppart.repair import Ground, Scrubber
from deeppart.save import (
    CallNotes,
    Compressing,
    Incremental,
    Pipeline,
    Protector,
    RankStorage,
    Retention,
    SuspicionWriter,
    lower_priority,
)
from deeppart.session.record import Session
from deeppart.storage import RateLimit

#: How long to wait for a record of suspect steps to be written: the caller may end the job after its warning.
SUSPICION_PATIENCE_S = 30.0


def retention_for(session: Session) -> Retention:
    """The retention of old steps: in its directory if this rank leads it, on the persistent level if it is rank 0.

    A ``keep`` that was found in a file rather than passed removes no steps of earlier runs there.
    """
    earlier = dict(session.earlier)
    if "keep" in session.config.from_file:
        earlier[Level.PERSISTENT] = earlier[Level.PERSISTENT] - session.committed
    return Retention(
        session.node_levels if session.leads_directory else {},
        session.persistent if session.comm.rank == 0 else None,
        session.config.keep,
        session.protection.every,
        earlier,
        session.owner,
    )


def pipeline_for(session: Session, retention: Retention, call_notes: CallNotes) -> Pipeline:
    """The background threads, started."""
    config, rank = session.config, session.comm.rank
    return Pipeline(
        session.channels,
        RankStorage(rank, session.node_levels.get(Level.LOCAL), session.persistent, session.owner, session.memory),
        Compressing(config.compression, session.processors, lower_priority, session.persistent.signing),
        Incremental(on=config.incremental),
        retention,
        Protector(rank, session.protection, session.node_levels, session.limit),
        call_notes,
        config,
    )


def scrubber_for(session: Session, pipeline: Pipeline) -> Scrubber | None:
    """The scrubber, started; None if scrubbing is off."""
    bandwidth, rank = session.config.scrub_bandwidth, session.comm.rank
    if "scrub" not in session.channels or bandwidth is None:
        return None
    mates = session.topology.sharing_directory(rank)
    directory = session.topology.directories[rank]
    ground = Ground(
        directory=session.roots.at(directory) if directory else None,
        share=mates.index(rank),
        shares=len(mates),
        leads=session.leads_directory,
        lineage=session.lineage,
        node_of=session.topology.node_of,
        rate=RateLimit(bandwidth / len(session.topology.mates(rank))),
        at=session.roots.at,
        open_source=session.open_source,
    )
    return Scrubber(
        session.channels["scrub"],
        pipeline,
        ground,
        session.protection,
        session.node_levels,
        session.persistent,
        session.limit,
    )


def suspicions_for(session: Session, pipeline: Pipeline) -> SuspicionWriter:
    """Writes records of suspect steps; only rank 0 writes."""
    job = Attempt(session.lineage, session.session, 0, 0, session.comm.size)
    patience_s = min(SUSPICION_PATIENCE_S, session.config.timeout / 4)  # the other ranks are waiting for rank 0
    return SuspicionWriter(session.persistent.store, job, patience_s, pipeline.call_notes)
