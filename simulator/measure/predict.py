"""Predicts real checkpoints on a machine: calibration inverts this function, and validation tests it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deeppart.model import Level

from ..machine.record import Machine
from ..timing.restores import restore_s
from ..timing.stages import Job, Protection, times_of
from ..workload.holding import Shares
from ..workload.states import State, read_state
from .tasks import LOSE, RESTORE, SaveTask

#: Most nodes of a measured parity group.
MOST_GROUP = 4


def predict(machine: Machine, ranks: int, task: SaveTask, *, alone_s: float = 0.0) -> dict[str, float]:
    """Predict the measured seconds of such checkpoints, or of the restore after them. ``alone_s``: seconds of the
    concurrent training without checkpoints.
    """
    text = f"tensors-{task.tensors}x{task.nbytes // task.tensors // 4 * 4}"
    job = Job(
        state=_state(text),
        machine=as_nodes(machine, ranks, _lost(task)) if task.nodes else machine,
        ranks=ranks,
        ranks_per_node=1 if task.nodes else ranks,
        compression=task.compression,
        capture=task.capture,
        protection=Protection(task.local, task.partner, task.parity_group, persistent=task.persistent),
        flush_bandwidth=math.inf if task.flush_bandwidth is None else task.flush_bandwidth,
    )
    shares = _shares(text, ranks)
    if task.after in (RESTORE, LOSE):
        return {"restore": restore_s(job, shares, _parts(task, job.nodes), job.nodes)}
    times = times_of(job, shares)
    complete = times.complete()
    busy_s = max(complete.values()) - times.blocked_s
    work = task.local / machine.local.work + task.persistent / machine.persistent.work
    return complete | {
        "capture": float(times.capture.max()),
        "blocked": times.blocked_s,
        "work": work * task.nbytes / ranks,
        "trained": alone_s + times.blocked_s + machine.interference * busy_s,
    }


@lru_cache(maxsize=64)
def _state(text: str) -> State:
    return read_state(text)


@lru_cache(maxsize=256)
def _shares(text: str, ranks: int) -> Shares:
    """Cached: a fit predicts the same checkpoints many times."""
    return _state(text).shares(ranks)


def _lost(task: SaveTask) -> str | None:
    """The level from which a lost node's parts are restored; None if no node is lost."""
    if not task.local:
        return Level.PERSISTENT
    if task.after != LOSE:
        return None
    return Level.PARTNER if task.partner else Level.PARITY if task.parity_group else Level.PERSISTENT


def _parts(task: SaveTask, nodes: int) -> dict[str, int]:
    """Level -> number of nodes whose parts are read from it."""
    level = _lost(task)
    return {Level.LOCAL: nodes} if level is None else {Level.LOCAL: nodes - 1, level: 1}


def as_nodes(machine: Machine, nodes: int, lost: str | None = None) -> Machine:
    """A machine with a node for each rank, which always has its fraction of memory and storage bandwidth, and the rate
    of one rank to the file system.
    """
    crowding = machine.crowding(nodes)
    memory, local, network, persistent = machine.memory, machine.local, machine.network, machine.persistent
    copy = min(memory.copy, memory.node_copy / nodes)
    read = min(local.rank_read, local.read / nodes)
    if lost == Level.PARTNER:  # half of the bytes are read at the shared rate, half at the rate of one rank
        read = 2 / (1 / read + 1 / min(local.rank_read, local.read))
    memory = replace(_crowded(memory, _COMPUTED, crowding), copy=copy, node_copy=copy, hash=memory.hash / crowding)
    local = _crowded(local, ("tensor",), crowding, ("work",))
    persistent = _crowded(persistent, ("tensor", "leaf"), crowding, ("work",))
    codecs = {name: _crowded(codec, (), crowding, ("encode", "decode")) for name, codec in machine.codecs.items()}
    return replace(
        machine,
        nodes=nodes,
        ranks_per_node=1,
        cores=max(1, machine.cores // nodes),
        memory=memory,
        local=replace(local, write=min(local.rank_write, local.write / nodes), read=read),
        network=_crowded(network, (), crowding, ("copies", "parity", "rebuild")),
        persistent=replace(
            persistent,
            write=min(persistent.write, persistent.node_write),
            read=min(persistent.read, persistent.node_read),
            node_write=min(persistent.rank_write, persistent.node_write),
            node_read=min(persistent.rank_read, persistent.node_read),
        ),
        codecs=codecs,
    )


#: Times in ``[memory]`` that are computation, which takes longer if ranks share cores.
_COMPUTED = (
    "tensor", "call", "leaf", "defer_call", "defer", "late_tensor", "compare", "compare_large", "restore",
    "restored_leaf",
)  # fmt: skip


def _crowded(record: Any, seconds: Sequence[str], crowding: float, rates: Sequence[str] = ()) -> Any:
    """A record with times multiplied, and rates divided, by the crowding of the cores."""
    values = {name: getattr(record, name) * crowding for name in seconds}
    return replace(record, **values, **{name: getattr(record, name) / crowding for name in rates})
