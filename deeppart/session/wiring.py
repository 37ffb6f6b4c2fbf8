"""Makes what a checkpointer works with, out of an open session: threads, retention, cadence, the recorder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.cadence import AutoCadence, History
from deeppart.config import AUTO, Config, expand_directory, job_name
from deeppart.errors import ConfigError, DeeppartWarning, warn_caller
from deeppart.model import LEVELS, LIBRARY, Attempt, Level
from deeppart.pending import Pending
from deeppart.plan.interval import FLUSH_SHARE
from deeppart.repair import Ground, Scrubber
from deeppart.save import (
    Compressing,
    Incremental,
    Ledger,
    Pipeline,
    Protector,
    RankStorage,
    Retention,
    SuspicionWriter,
    lower_priority,
)
from deeppart.session.record import Session
from deeppart.storage.rate import RateLimit
from deeppart.telemetry import EVENTS_BEGIN, METRICS_BEGIN, Facts, Live, Outputs, Recorder, ScrubStatus, StatusFile

#: A record of suspect steps is waited for: the caller may end the job as soon as it hears of them.
SUSPICION_PATIENCE_S = 30.0


def retention_for(session: Session) -> Retention:
    """The retention of old steps: in its directory if this rank leads it, on the persistent level if it is rank 0.

    A ``keep`` that was found in a file, and that nobody has passed, removes no steps of earlier runs there.
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


def pipeline_for(session: Session, retention: Retention, ledger: Ledger) -> Pipeline:
    """The background threads, running."""
    config, rank = session.config, session.comm.rank
    return Pipeline(
        session.channels,
        RankStorage(rank, session.node_levels.get(Level.LOCAL), session.persistent, session.owner),
        Compressing(config.compression, session.processors, lower_priority, session.persistent.signing),
        Incremental(rank, on=config.incremental, levels=_that_refer(session)),
        retention,
        Protector(rank, session.protection, session.node_levels, session.limit),
        ledger,
        config,
    )


def _that_refer(session: Session) -> tuple[str, ...]:
    """Levels at which a part may refer to earlier ones: sections of node files do not."""
    return tuple(level for level in LEVELS if level != Level.PERSISTENT or not session.persistent.mates)


def scrubber_for(session: Session, pipeline: Pipeline) -> Scrubber | None:
    """Scrubbing, running; None where it is off."""
    bandwidth, rank = session.config.scrub_bandwidth, session.comm.rank
    if "scrub" not in session.channels or bandwidth is None:
        return None
    mates = session.topology.sharing_directory(rank)
    directory = session.topology.directories[rank]
    ground = Ground(
        directory=Path(directory) if directory else None,
        share=mates.index(rank),
        shares=len(mates),
        leads=session.leads_directory,
        lineage=session.lineage,
        node_of=session.topology.node_of,
        rate=RateLimit(bandwidth / len(session.topology.mates(rank))),
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


def cadence_for(session: Session) -> AutoCadence | None:
    """The cadence that decides when to checkpoint; None if the configuration does."""
    if session.config.every != AUTO:
        return None
    nodes = len(session.topology.nodes)
    history = History(session.persistent.root, session.session, nodes) if session.comm.rank == 0 else None
    if history is not None and history.problem is not None:
        warn_caller(f"every='auto' does not know earlier runs: {history.problem}", DeeppartWarning)
    share = FLUSH_SHARE if session.config.flush_bandwidth is None else 1.0
    return AutoCadence(session.comm, session.protection.every, nodes, history, session.config.timeout, share)


def suspicions_for(session: Session, pipeline: Pipeline) -> SuspicionWriter:
    """Puts suspect steps on record; rank 0 alone writes."""
    job = Attempt(session.lineage, session.session, 0, 0, session.comm.size)
    patience_s = min(SUSPICION_PATIENCE_S, session.config.timeout / 4)  # the other ranks are waiting for rank 0
    return SuspicionWriter(session.persistent.root, job, patience_s, pipeline.ledger)


def telemetry_files(config: Config, node: str, rank: int) -> dict[str, Path]:
    """``metrics_file`` and ``events_file``, filled in, as far as they are set."""
    found = {}
    for name, begins in (("metrics_file", METRICS_BEGIN), ("events_file", EVENTS_BEGIN)):
        template = getattr(config, name)
        if template is not None:
            found[name] = expand_directory(template, node=node, rank=rank, job=job_name())
            _check_ours(name, found[name], begins)
    return found


def _check_ours(setting: str, path: Path, begins: re.Pattern[bytes]) -> None:
    """See that a file is absent, empty (as one is after a power cut), or one that an earlier session has written."""
    try:
        with os.fdopen(access.open_file(path), "rb") as file:
            text = file.read(200)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise storage_error(f"{setting} cannot be read", error, path) from error
    if text and not begins.match(text):
        raise ConfigError(
            f"{setting} names a file that holds something else",
            expected="no file, an empty one, or what an earlier run has written",
            found="a file that begins otherwise",
            where=str(path),
            todo=f"give {setting} another name, or move the file away",
        )


def recorder_for(
    session: Session, pipeline: Pipeline, scrubber: Scrubber | None, cadence: AutoCadence | None
) -> Recorder:
    """The recorder, running if this rank has anything to write."""
    rank, every = session.comm.rank, session.protection.every
    facts = Facts(
        session=session.session,
        job=job_name(),
        library=LIBRARY,
        node=session.topology.names[rank],
        process=os.getpid(),
        rank=rank,
        world_size=session.comm.size,
        nodes=len(session.topology.nodes),
        every={} if cadence is not None else {level: every[level] for level in LEVELS if every[level]},
        levels=tuple(level for level in LEVELS if every[level]),
        reduced=session.protection.shortfalls,
    )
    return Recorder(facts, _outputs(session), _Source(pipeline, scrubber, cadence), lower_priority)


def _outputs(session: Session) -> Outputs:
    """Files without ``{rank}`` in their name are one for each node: its first rank writes them."""
    config, rank = session.config, session.comm.rank
    leads = session.topology.mates(rank)[0] == rank
    writes = config.status == "rank" or (config.status == "node" and leads)
    status = StatusFile(session.persistent.root, session.session, rank) if writes else None

    def file(name: str, template: str | None) -> Path | None:
        return session.telemetry_files.get(name) if leads or "{rank}" in (template or "") else None

    paths = file("metrics_file", config.metrics_file), file("events_file", config.events_file)
    return Outputs(status, *paths, session.owner)


class _Source:
    """What the recorder's thread asks; each of these is one look at what other threads change."""

    def __init__(self, pipeline: Pipeline, scrubber: Scrubber | None, cadence: AutoCadence | None) -> None:
        self._pipeline, self._scrubber, self._cadence = pipeline, scrubber, cadence

    def live(self) -> Live:
        """As :class:`deeppart.telemetry.recorder.Source` has it; the next ones too."""
        report = None if self._cadence is None else self._cadence.report
        scrubbed = None
        if self._scrubber is not None:
            done = self._scrubber.report
            scrubbed = ScrubStatus(done.cycles, done.nbytes, done.damaged, done.repaired)
        return Live(None if report is None else report.cadence.period_s, self._pipeline.repairing, scrubbed)

    def holds(self, pending: Pending) -> bool:
        return self._pipeline.holds(pending)

    def tell(self, text: str) -> None:
        self._pipeline.ledger.note(text, DeeppartWarning)
