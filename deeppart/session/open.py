"""Start-up: from a configuration to connected ranks, checked settings and open directories.

Everything here is collective and happens once. Whatever is wrong on one rank ends in an error on every rank.
"""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart.comm import Comm, connect, finish
from deeppart.comm.agreement import raise_together, together
from deeppart.config import Config
from deeppart.config.arguments import resolve_config
from deeppart.config.job import expand_directory, job_name, node_name
from deeppart.errors import DeeppartError, DeeppartWarning, as_error, warn_caller
from deeppart.model import LEVELS, Level
from deeppart.nodes.pairing import protect
from deeppart.part import Signing, read_key_files
from deeppart.session.directories import guard_directories, open_levels, shared_directories
from deeppart.session.handshake import take_persistent
from deeppart.session.record import Session
from deeppart.session.recording import telemetry_files
from deeppart.session.start_warnings import (
    tell_lineage,
    tell_protection,
    tell_restarts,
    tell_settings,
)
from deeppart.session.topology import compare_settings
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.rate import RateLimit

_WHAT = "starting the checkpointer"
#: How long a rank that cannot start waits to tell the others, who may not come at all.
_REFUSAL_PATIENCE_S = 30.0


def configuration_of(config: Config | None, settings: dict[str, Any], comm: Any) -> Config:
    """The configuration that a checkpointer is made with; where it is refused, the other ranks hear of it."""
    try:
        return resolve_config(config, settings)
    except (DeeppartError, TypeError) as error:
        _tell_refusal(error, comm)
        raise


def _tell_refusal(error: Exception, comm: Any) -> None:
    """Tell the ranks that are on their way to :func:`open_session` that this one cannot start (collective)."""
    within = _WHAT, _REFUSAL_PATIENCE_S
    with contextlib.suppress(DeeppartError):  # what counts is the error
        main = connect(comm, _REFUSAL_PATIENCE_S)
        try:
            raise_together(main, as_error(error, "the settings were refused"), *within)
        finally:
            main.give_back()


def open_session(config: Config, comm: Any) -> Session:
    """Connect the ranks and open the directories (collective)."""
    main = connect(comm, config.timeout)
    with ExitStack() as taken:
        taken.callback(main.give_back)
        session = _open(main, config, taken)
        taken.pop_all()
    return session


def _open(main: Comm, config: Config, taken: ExitStack) -> Session:
    """A session between connected ranks; ``taken`` gives back what it has taken so far, if its start fails."""
    rank, within = main.rank, (_WHAT, config.timeout)
    if rank == 0:
        tell_settings(config)
    signing = together(main, lambda: _read_keys(config, rank), "reading sign_key_file failed", within)
    topology, processors = compare_settings(main, config, signing, _WHAT)
    node = topology.names[rank]
    directory, telemetry = together(
        main, lambda: _paths(config, node, rank), "the directories could not be found out", within
    )
    guards = guard_directories(config, directory, topology.directories[rank])
    taken.callback(guards.release)
    owner, handshake = take_persistent(main, config, str(directory), within)
    if owner is not None:
        taken.callback(owner.close)
    if topology.directories[rank]:
        lineage_directory = Path(topology.directories[rank]) / handshake.lineage
        guards.add(lineage_directory, access.node_rules(config.permissions))
    shared = shared_directories(main, config, topology, handshake, _WHAT)
    protection = protect(config, topology.nodes, topology.node_names, shared)
    levels, earlier = together(
        main,
        lambda: open_levels(rank, config, topology, handshake, signing, parity=bool(protection.sets)),
        "opening the levels on this node failed",
        within,
    )
    busy = [level for level in LEVELS if protection.every[level]]
    if config.scrub_bandwidth is not None and (protection.copies or protection.sets):
        busy.append("scrub")
    channels: dict[str, Comm] = {}
    for name in busy:
        channels[name] = finish(main, main.channel(), *within)
        taken.callback(channels[name].give_back)
    if rank == 0:
        if main.size > 1:
            tell_restarts()
        tell_protection(directory, handshake.session, protection)
        tell_lineage(directory, owner)
    mates = topology.mates(rank)
    limit = None if config.flush_bandwidth is None else RateLimit(config.flush_bandwidth / len(mates))
    earlier[Level.PERSISTENT] = set(handshake.steps)
    session = Session(
        config,
        main,
        channels,
        topology,
        handshake.lineage,
        handshake.session,
        owner,
        levels,
        PersistentLevel(directory, limit, signing, mates if config.files == "node" else ()),
        protection,
        limit,
        set(handshake.committed),
        earlier,
        processors,
        guards,
        telemetry,
    )
    if session.leads_directory:
        for level in levels.values():
            level.drop_foreign_spares()
    if rank == 0 and config.permissions == "unchecked":
        text = 'permissions = "unchecked": whoever may write to the directories decides what is restored'
        warn_caller(text, DeeppartWarning)
    return session


def _paths(config: Config, node: str, rank: int) -> tuple[Path, dict[str, Path]]:
    """The persistent directory, and the files for whoever watches the job, as this rank has them."""
    directory = expand_directory(config.persistent_dir, node=node, rank=rank, job=job_name())
    return directory, telemetry_files(config, node, rank)


def _read_keys(config: Config, rank: int) -> Signing | None:
    """The keys that this rank was given."""
    files = config.sign_key_file or ()
    return read_key_files([expand_directory(each, node=node_name(), rank=rank, job=job_name()) for each in files])
