"""What the simulator predicts for real checkpoints on a machine: what calibration inverts, and validation judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deeppart.cli.calibrate.tasks import LOSE, RESTORE, SaveTask
from deeppart.model import Level

from ..machine.record import Machine
from ..timing.restores import restore_s
from ..timing.stages import Job, Protection, times_of
from ..workload.holding import Shares
from ..workload.states import State, read_state

#: The parity groups that are measured have at most so many nodes.
MOST_GROUP = 4


def predict(machine: Machine, ranks: int, task: SaveTask, *, alone_s: float = 0.0) -> dict[str, float]:
    """Seconds of what is measured of such checkpoints, or of the restore after them; ``alone_s``: of the training that
    runs beside them, by itself.
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
    """A fit predicts the same checkpoints again and again."""
    return _state(text).shares(ranks)


def _lost(task: SaveTask) -> str | None:
    """The level that has what was on a node that is lost; None if none is."""
    if not task.local:
        return Level.PERSISTENT
    if task.after != LOSE:
        return None
    return Level.PARTNER if task.partner else Level.PARITY if task.parity_group else Level.PERSISTENT


def _parts(task: SaveTask, nodes: int) -> dict[str, int]:
    """Level -> nodes whose parts are read there."""
    level = _lost(task)
    return {Level.LOCAL: nodes} if level is None else {Level.LOCAL: nodes - 1, level: 1}


def as_nodes(machine: Machine, nodes: int, lost: str | None = None) -> Machine:
    """The machine of such nodes, one rank on each, that has its part of memory and storage and the rate of one rank to
    the file system, whether or not the others use theirs.
    """
    crowding = machine.crowding(nodes)
    memory, local, network, persistent = machine.memory, machine.local, machine.network, machine.persistent
    copy = min(memory.copy, memory.node_copy / nodes)
    read = min(local.rank_read, local.read / nodes)
    if lost == Level.PARTNER:  # as much with the others as without them
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


#: Seconds of ``[memory]`` that ranks compute, and that take longer where they share cores.
_COMPUTED = (
    "tensor", "call", "leaf", "defer_call", "defer", "late_tensor", "compare", "compare_large", "restore",
    "restored_leaf",
)  # fmt: skip


def _crowded(record: Any, seconds: Sequence[str], crowding: float, rates: Sequence[str] = ()) -> Any:
    """A record with what is computed as slow as with so many ranks on a core."""
    values = {name: getattr(record, name) * crowding for name in seconds}
    return replace(record, **values, **{name: getattr(record, name) / crowding for name in rates})
