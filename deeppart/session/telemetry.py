"""The recorder of a session, whose files others watch, and the cadence for ``every="auto"``."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart._times import now
from deeppart.access import storage_error
from deeppart.cadence import AutoCadence, History
from deeppart.config import AUTO, Config, expand_directory, job_name
from deeppart.errors import ConfigError, DeeppartWarning, warn_caller
from deeppart.model import LEVELS, LIBRARY
from deeppart.plan.interval import FLUSH_SHARE
from deeppart.repair import Scrubber
from deeppart.save import Pipeline, lower_priority
from deeppart.session.record import Session
from deeppart.telemetry import EVENTS_BEGIN, METRICS_BEGIN, Outputs, RankStatus, Recorder, StatusFile


def cadence_for(session: Session) -> AutoCadence | None:
    """The cadence that decides when to checkpoint; None if the configuration sets fixed intervals."""
    if session.config.every != AUTO:
        return None
    nodes = len(session.topology.nodes)
    history = History(session.persistent.store, session.session, nodes) if session.comm.rank == 0 else None
    if history is not None and history.problem is not None:
        warn_caller(f"every='auto' does not know earlier runs: {history.problem}", DeeppartWarning)
    share = FLUSH_SHARE if session.config.flush_bandwidth is None else 1.0
    return AutoCadence(session.comm, session.protection.every, nodes, history, session.config.timeout, share)


def telemetry_files(config: Config, node: str, rank: int) -> dict[str, Path]:
    """``metrics_file`` and ``events_file`` with their placeholders filled in, if they are set."""
    found = {}
    for name, begins in (("metrics_file", METRICS_BEGIN), ("events_file", EVENTS_BEGIN)):
        template = getattr(config, name)
        if template is not None:
            found[name] = expand_directory(template, node=node, rank=rank, job=job_name())
            _check_ours(name, found[name], begins)
    return found


def _check_ours(setting: str, path: Path, begins: re.Pattern[bytes]) -> None:
    """Check that a file is absent, empty (as after a power failure), or was written by an earlier session."""
    try:
        with os.fdopen(access.open_file(path), "rb") as file:
            text = file.read(200)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise storage_error(f"{setting} cannot be read", error, path) from error
    if text and not begins.match(text):
        raise ConfigError(
            f"{setting} names a file with other content",
            expected="no file, an empty one, or one that an earlier run has written",
            found="a file that begins differently",
            where=str(path),
            todo=f"give {setting} another name, or move the file away",
        )


def recorder_for(
    session: Session, pipeline: Pipeline, scrubber: Scrubber | None, cadence: AutoCadence | None
) -> Recorder:
    """The recorder, started if this rank has anything to write."""
    rank, every = session.comm.rank, session.protection.every
    status = RankStatus(
        session=session.session,
        job=job_name(),
        library=LIBRARY,
        node=session.topology.names[rank],
        process=os.getpid(),
        rank=rank,
        world_size=session.comm.size,
        nodes=len(session.topology.nodes),
        began=now(),
        written=now(),
        every={} if cadence is not None else {level: every[level] for level in LEVELS if every[level]},
        reduced=session.protection.shortfalls,
    )

    def live() -> dict[str, Any]:
        report = None if cadence is None else cadence.report
        found: dict[str, Any] = {"repairing": pipeline.repairing}
        if scrubber is not None:
            found["scrubbed"] = scrubber.report
        return found | {"period_s": None if report is None else report.cadence.period_s}

    levels, note = [level for level in LEVELS if every[level]], pipeline.call_notes.note
    tell = partial(note, category=DeeppartWarning)
    return Recorder(status, levels, _outputs(session), live, pipeline.holds, tell, lower_priority)


def _outputs(session: Session) -> Outputs:
    """The files to write; one without ``{rank}`` in its name is written by the first rank of each node."""
    config, rank = session.config, session.comm.rank
    leads = session.topology.mates(rank)[0] == rank
    writes = config.status == "rank" or (config.status == "node" and leads)
    status = StatusFile(session.directory, session.session, rank) if writes else None

    def file(name: str, template: str | None) -> Path | None:
        return session.telemetry_files.get(name) if leads or "{rank}" in (template or "") else None

    paths = file("metrics_file", config.metrics_file), file("events_file", config.events_file)
    return Outputs(status, *paths, session.owner)
