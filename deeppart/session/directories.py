"""The directories of a session: guarded, opened as levels, and compared between nodes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.comm import Comm, finish
from deeppart.comm.agreement import together
from deeppart.config import Config
from deeppart.config.job import expand_directory, job_name
from deeppart.errors import StorageError
from deeppart.model import StepKey
from deeppart.nodes.erasure import check_available
from deeppart.part import Signing
from deeppart.session.handshake import Handshake
from deeppart.session.topology import Topology
from deeppart.storage.files import make_directory
from deeppart.storage.lineage import read_lineage
from deeppart.storage.node import NODE_FOLDERS, NodeLevel


def guard_directories(config: Config, persistent: Path, local: str) -> access.Guards:
    """From here on, nothing below these directories is reached but by way of what others have no hand in."""
    guards = access.Guards()
    guards.add(persistent, access.persistent_rules(config.permissions))
    if local:
        guards.add(Path(local), access.node_place(config.permissions))
    return guards


def open_levels(
    rank: int, config: Config, topology: Topology, handshake: Handshake, signing: Signing | None, *, parity: bool
) -> tuple[dict[str, NodeLevel], dict[str, set[StepKey]]]:
    """This rank's view of both directories, and the steps on its node."""
    node = topology.names[rank]
    persistent = expand_directory(config.persistent_dir, node=node, rank=rank, job=job_name())
    if read_lineage(persistent) != handshake.lineage:
        raise StorageError(
            "persistent_dir is not the same directory on every rank",
            expected=f"lineage {handshake.lineage}, that of the directory of rank 0",
            found=f"lineage {read_lineage(persistent)} in {persistent}",
            where=f"rank {rank} on {node}",
            todo="use a directory on a file system that all nodes share",
        )
    if config.local_dir is None:
        return {}, {}
    if parity:
        check_available()
    local = expand_directory(config.local_dir, node=node, rank=rank, job=job_name())
    # All of them, also those that are off: what earlier runs left there is to be found and retired.
    what = (handshake.session, config.permissions, signing)
    levels = {name: NodeLevel(local, handshake.lineage, name, *what) for name in NODE_FOLDERS}
    return levels, {name: level.steps() for name, level in levels.items()}


def shared_directories(
    comm: Comm, config: Config, topology: Topology, handshake: Handshake, what: str
) -> tuple[tuple[int, int], ...]:
    """Pairs of nodes whose local directory is one and the same (collective): each leaves a mark and looks for others'.

    Best effort: file systems that show new files of other hosts only after a while are not seen through.
    """
    rank = comm.rank
    if len(topology.nodes) < 2 or not any(topology.directories):
        return ()
    node, directory = topology.node_of[rank], Path(topology.directories[rank] or ".")
    leads = bool(topology.directories[rank]) and topology.first_in_directory(rank) == rank
    prefix = f".node-{handshake.session}-"
    mark = directory / f"{prefix}{node}"

    def leave_mark() -> None:
        if leads:
            try:
                make_directory(directory, access.node_place(config.permissions))
                os.close(access.create(mark))
            except OSError as refusal:
                raise storage_error("local_dir is not writable", refusal, directory) from refusal

    together(comm, leave_mark, "making local_dir failed", (what, config.timeout))
    seen: set[int] = set()
    if leads:
        with contextlib.suppress(OSError):  # the level itself will tell
            names = [name[len(prefix) :] for name in access.names_in(directory) if name.startswith(prefix)]
            seen = {int(name) for name in names if name.isdigit()} - {node}
    message = json.dumps([[node, other] for other in sorted(seen)]).encode()
    texts = finish(comm, comm.allgather(message), what, config.timeout)
    if leads:
        with contextlib.suppress(OSError):
            access.remove(mark)
    return tuple(sorted({(min(pair), max(pair)) for text in texts for pair in json.loads(text)}))
