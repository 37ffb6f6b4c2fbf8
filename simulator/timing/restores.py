"""The time of a restore: reading the parts from their sources, and delivering to every rank what it needs."""

from __future__ import annotations

import math

import numpy as np

from deeppart.model import Level
from deeppart.partition import IntArray

from ..workload.holding import Shares
from .stages import FloatArray, Job, by_node, codec_of, finish_times

#: A rank restores with its share of the node's cores: at most this many threads (deeppart/session/topology.py), and at
#: least this many (deeppart/recovery/parts.py).
MOST_THREADS, LEAST_THREADS = 8, 2
#: Tensors from this size on are received in place: deeppart/state/capture/layout.py.
ALONE_BYTES = 1 << 20


def restore_s(job: Job, shares: Shares, parts: dict[str, int], saved_nodes: int | None = None) -> float:
    """Seconds from the planner's choice until the state is restored on all ranks."""
    nodes = job.nodes if saved_nodes is None else saved_nodes
    ratio, _ = codec_of(job, shares)
    total = float(shares.nbytes.sum()) * ratio
    each = total / nodes  # bytes of a node's parts
    per_rank = by_node(shares.nbytes, job.ranks_per_node) * ratio
    machine = job.machine
    read = 0.0
    if parts.get(Level.LOCAL):
        read = float(finish_times(per_rank, machine.local.rank_read, machine.local.read).max())
    node_read = min(machine.local.read, machine.local.rank_read * job.ranks_per_node)
    if parts.get(Level.PARTNER):  # the partner reads its parts and those of the lost node
        read = max(read, 2 * each / node_read)
    if parts.get(Level.PERSISTENT):
        persistent = machine.persistent
        lost = parts[Level.PERSISTENT] * each
        aggregate = persistent.read * (1 - persistent.others)
        most = _most_fetched(job.nodes - parts.get(Level.LOCAL, 0), lost, each, total / job.nodes)
        reading = max(lost / aggregate, most / min(persistent.node_read, persistent.rank_read * job.ranks_on_node))
        read = max(read, reading + persistent.file)
    rebuilt = 0.0
    if parts.get(Level.PARITY):
        # The c-th parts of a group's nodes are a set, and sets are rebuilt in parallel. A rank that computes a block
        # has read another one of its stripe, and sends one on: no link carries more than the lost parts. The other
        # parts have been loaded before; the rebuilt ones are then loaded from memory.
        network = machine.network
        rebuilt = max(each / network.bandwidth, each / (network.rebuild * job.ranks_on_node)) + network.exchange
    decoding = _decode_s(job, shares, per_rank / ratio)
    begin = (machine.memory.restore + machine.memory.restored_leaf * job.leaves_held()) * job.crowding
    return begin + rebuilt + read + decoding + distribute_s(job, encoded=ratio != 1.0)


def _most_fetched(idle: int, lost: float, each: float, share: float) -> float:
    """The most bytes that a node reads from the file system: nodes without local parts read the lost ones until they
    have read as much as the others, then all nodes do (deeppart/plan/restart/reading.py).
    """
    if idle <= 0:
        return max(0.0, share - each)
    return min(lost / idle, max(each, share))


def distribute_s(job: Job, *, encoded: bool = False) -> float:
    """Seconds for delivering bytes to all ranks: once per node over the network, then copied by every rank."""
    needed, passed, copies = np.zeros(job.ranks), np.zeros(job.ranks), np.zeros(job.ranks)
    for groups in job.state.on(job.ranks):
        nbytes = float(groups.leaves.nbytes.sum())
        members = groups.ranks.shape[1]
        on_node = _members_on_node(groups.ranks, job.ranks_per_node)
        needed[groups.ranks] += nbytes * (1 - on_node / members) / on_node
        from_others = np.where(on_node > 1, 1 - 1 / members, 0.0)
        passed[groups.ranks] += nbytes * from_others
        large = float(groups.leaves.nbytes[groups.leaves.nbytes >= ALONE_BYTES].sum())
        copies[groups.ranks] += nbytes - large * from_others * encoded
    memory, network = job.machine.memory, job.machine.network
    over = by_node(needed, job.ranks_per_node).sum(axis=1).max() / network.bandwidth if job.nodes > 1 else 0.0
    copied = finish_times(by_node(copies, job.ranks_per_node), memory.copy, memory.node_copy).max()
    if encoded and job.ranks_on_node > 1:
        # If the machine is one host, its network was calibrated as messages within it; otherwise these are two copies.
        one_host = job.machine.nodes == 1
        each = network.bandwidth if one_host else memory.copy / 2
        together = math.inf if one_host else memory.node_copy / 2
        copied += finish_times(by_node(passed, job.ranks_per_node), each, together).max()
    return float(max(over, copied))


def _members_on_node(ranks: IntArray, ranks_per_node: int) -> IntArray:
    """For each rank of each set, how many ranks of the set are on its node."""
    if 1 in (ranks.shape[1], ranks_per_node):
        return np.ones_like(ranks)
    nodes = ranks // ranks_per_node
    places = np.arange(len(ranks))[:, None] * (nodes.max() + 1) + nodes
    _, back, counts = np.unique(places, return_inverse=True, return_counts=True)
    return counts[back].reshape(ranks.shape)


def _decode_s(job: Job, shares: Shares, raw: FloatArray) -> float:
    ratio, _ = codec_of(job, shares)
    if ratio == 1.0:
        return 0.0
    machine = job.machine
    cores = machine.cores / job.ranks_on_node
    threads = min(MOST_THREADS, max(LEAST_THREADS, math.floor(cores)), cores)
    per_byte = sum(
        share * (1 / machine.codecs[dtype].decode + 1 / machine.memory.hash)
        for dtype, share in shares.by_dtype.items()
        if dtype in machine.codecs
    )
    return float(raw.max()) * per_byte / threads
