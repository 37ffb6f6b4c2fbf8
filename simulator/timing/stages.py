"""The time of each stage of one checkpoint, and when it is complete at each level.

The stages are the library's (docs/architecture.md, "A save, step by step"): planning and the copy block training;
encoding, the local part, copies, parity and the flush follow in the background. Times are those of the slowest rank or
node, since ranks wait for each other before the next stage. Stages overlap if the node has enough cores: chunks are
encoded while others are written, and the flush follows the local file as it grows.

The strategy "rank0" is ``torch.save``: one thread copies each tensor to memory that is not pinned, computes a CRC-32
and writes through the page cache (torch/serialization.py, caffe2/serialize/inline_container.cc). Only writeback by the
kernel overlaps with that, and training waits until the end.

Bandwidth is shared equally among transfers, each up to its own limit (L. Kleinrock, Queueing Systems, volume 2, 1976).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.plan.interval import FLUSH_SHARE
from deeppart.plan.limit import limited_s
from deeppart.plan.redundancy import Stripes, block_bytes_for

from ..machine.record import Machine
from ..workload.holding import Shares
from ..workload.layout import Layout
from ..workload.states import State

# --- shared bandwidth -------------------------------------------------------------------------------------------------


FloatArray = NDArray[np.float64]


def finish_times(amounts: FloatArray, each: float, together: float) -> FloatArray:
    """The end of each of several transfers that begin together. A row of ``amounts`` shares the rate ``together``."""
    order = np.argsort(amounts, axis=1, kind="stable")
    ascending = np.take_along_axis(amounts, order, axis=1)
    steps = np.diff(ascending, axis=1, prepend=0.0)
    members = amounts.shape[1]
    active = np.arange(members, 0, -1)
    # While the j-th smallest transfer is in progress, so are all larger ones.
    rate = np.minimum(each, together / active)
    times = np.cumsum(steps / rate, axis=1)
    found = np.empty_like(times)
    np.put_along_axis(found, order, times, axis=1)
    return np.where(amounts > 0, found, 0.0)


def finish_times_of_all(amounts: FloatArray, each: float, together: float, all_rows: float) -> FloatArray:
    """The same if all rows share the rate ``all_rows`` in equal parts."""
    times = finish_times(amounts, each, together)
    slowest, everything = float(times.max()), float(amounts.sum()) / all_rows
    return times * (everything / slowest) if slowest and everything > slowest else times


def by_node(per_rank: NDArray[np.int64] | FloatArray, ranks_per_node: int) -> FloatArray:
    """float64[nodes, ranks_per_node] from one entry per rank; the last node is padded with zeros."""
    nodes = -(-len(per_rank) // ranks_per_node)
    padded = np.zeros(nodes * ranks_per_node)
    padded[: len(per_rank)] = per_rank
    return padded.reshape(nodes, ranks_per_node)


# --- times and dependencies -------------------------------------------------------------------------------------------


#: Stages in the order in which tables and timelines show them.
STAGES = ("plan", "capture", "encode", Level.LOCAL, Level.PARTNER, Level.PARITY, Level.PERSISTENT)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Seconds of one checkpoint."""

    plan: float  # planning and agreement, on every rank
    capture: FloatArray  # float64[ranks], the copy of the share; of a lazy call, the copy after the call
    encode: FloatArray  # float64[ranks], with all encoding threads
    local: FloatArray  # float64[ranks], writing the part, without encoding
    local_end: FloatArray  # float64[ranks], the part of ``local`` after the last chunk: tables, sync, rename, round
    partner: FloatArray  # float64[nodes], sending and storing copies
    parity: FloatArray  # float64[nodes], exchanging, encoding and storing parity
    persistent: FloatArray  # float64[ranks], writing to the file system
    persistent_end: FloatArray  # float64[ranks], the part of ``persistent`` after the last chunk
    #: float64[ranks], with encoding: what the node's cores need for all its ranks, which encode, write and read back at
    #: the same time. 0 without encoding, since the measured rates of writing include this
    cores: FloatArray
    encoded: FloatArray  # float64[ranks], bytes of the parts
    raw: FloatArray  # float64[ranks], bytes of the shares
    files: int  # created on the file system, without the manifest
    spans: int  # most spans of a rank
    lazy: bool  # true if the copy is made in the background
    #: of a lazy call: guarding tensors that are copied later and copying small ones, on the slowest rank
    deferring: float = 0.0
    commit: float = 0.0  # least time from the end of the local parts until the step is committed
    #: from the copy until everything that leaves a node has passed the job's bandwidth limit, which copies, parity and
    #: the flush share; 0 without a limit, or if only one of them leaves the node
    limited: float = 0.0
    waits: bool = False  # true if training waits for everything; ``capture`` is then the stream of ``torch.save``

    @property
    def blocked_s(self) -> float:
        """Seconds for which training waits."""
        if self.waits:
            return self.serial_s()
        return self.plan + (self.deferring if self.lazy else float(self.capture.max()))

    @property
    def stored(self) -> FloatArray:
        """float64[ranks]: from the copy until the local part is complete, with encoding."""
        chunks = np.maximum(np.maximum(self.encode, self.cores), self.local - self.local_end)
        return np.where(self.local > 0, chunks + self.local_end, 0.0)

    @property
    def flushed(self) -> FloatArray:
        """float64[ranks]: from the copy until the part is on the file system, with encoding."""
        chunks = np.maximum(np.maximum(self.encode, self.cores), self.persistent - self.persistent_end)
        kept_up = self.stored + np.where(self.stored > 0, self.commit, 0.0)
        return np.where(self.persistent > 0, np.maximum(kept_up, chunks + self.persistent_end), self.stored)

    def stages(self) -> dict[str, float]:
        """Stage -> seconds of the slowest rank or node."""
        found = {name: getattr(self, name) for name in STAGES[1:]}
        return {"plan": self.plan} | {name: float(times.max(initial=0.0)) for name, times in found.items()}

    def complete(self, *, overlapped: bool = True, flushed: bool = True) -> dict[str, float]:
        """Level -> seconds from the call until it is complete on all ranks; levels not in use are left out."""
        took = self.stages()
        if self.waits:  # bytes are written while others are serialized
            to = {Level.LOCAL: self.local, Level.PERSISTENT: self.persistent}
            return {name: self.plan + float(np.maximum(self.capture, at).max()) for name, at in to.items() if at.any()}
        captured = took["plan"] + took["capture"] + self.deferring
        done: dict[str, float] = {}
        ready, last = captured, ""
        if took[Level.LOCAL]:
            stored = self.stored if overlapped else self.encode + self.local
            ready = done[Level.LOCAL] = captured + float(stored.max())
        for level in REDUNDANT_LEVELS:
            if took[level]:
                ready = done[level] = ready + took[level]
                last = level
        if took[Level.PERSISTENT]:
            if overlapped:
                done[Level.PERSISTENT] = captured + max(float(self.flushed.max()), self.limited)
                if self.limited and flushed:
                    done[last] = max(done[last], captured + self.limited)
            else:
                encode = 0 if took[Level.LOCAL] else self.encode
                done[Level.PERSISTENT] = ready + float((self.persistent + encode).max())
                if took[Level.LOCAL]:
                    done[Level.PERSISTENT] = max(done[Level.PERSISTENT], done[Level.LOCAL] + self.commit)
        return done

    def serial_s(self) -> float:
        """Seconds of all stages one after another, without any background."""
        return max(self.complete(overlapped=False).values(), default=self.plan + float(self.capture.max()))


# --- one stream of torch.save -----------------------------------------------------------------------------------------


def device_copies_s(machine: Machine, nbytes: FloatArray) -> FloatArray:
    """Seconds for each rank's copy from its device to memory that is not pinned."""
    serialize = machine.serialize
    if np.isinf(serialize.copy) and np.isinf(serialize.node_copy):
        return np.zeros_like(nbytes)
    return finish_times(nbytes, serialize.copy, serialize.node_copy)


def streams_s(machine: Machine, nbytes: FloatArray, tensors: FloatArray) -> FloatArray:
    """Seconds of each rank's stream: copies, cost per byte and cost per tensor, one after another."""
    serialize = machine.serialize
    streams = np.count_nonzero(tensors, axis=1)
    crowding = np.array([machine.crowding(max(1, int(count))) for count in streams])[:, None]
    computing = (nbytes / serialize.stream + tensors * serialize.tensor) * crowding
    times: FloatArray = device_copies_s(machine, nbytes) + computing
    return times


def torch_save_words(layout: Layout) -> str:
    """Describe the strategy "rank0": with a layout, one rank of each set with equal leaves saves, all at once."""
    return "torch.save on rank 0" if layout == Layout() else "torch.save, one rank for each part"


# --- jobs and their stages --------------------------------------------------------------------------------------------


COMPRESSIONS = ("none", "tensor", "auto")
#: The strategy for ``torch.save`` on the lowest rank that holds a tensor, while all ranks wait.
TORCH_SAVE = "rank0"
#: Tensors up to this size are copied during a lazy call, and compared in full: deeppart/state/fingerprint.py.
SMALL_LEAF_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Protection:
    """The levels of a checkpoint."""

    local: bool = True  # storage of each node
    partner: bool = True  # a copy on another node
    parity_group: int = 0  # nodes in a parity group; 0 for no parity
    parity_tolerate: int = 1  # how many nodes of a group may be lost
    persistent: bool = True  # the parallel file system

    def __post_init__(self) -> None:
        if self.parity_group and not 1 <= self.parity_tolerate < self.parity_group:
            raise ConfigError(
                "the parity group is impossible",
                expected="parity_tolerate from 1 to below parity_group",
                found=f"parity_group {self.parity_group}, parity_tolerate {self.parity_tolerate}",
                where="--parity",
            )


@dataclass(frozen=True, slots=True)
class Job:
    """A job on a machine."""

    state: State
    machine: Machine  # the machine on which it runs
    ranks: int
    ranks_per_node: int
    strategy: str = "deeppart"  # of the partitioner
    compression: str = "none"  # "none", "tensor" or "auto"
    capture: str = "eager"  # "eager" or "lazy"
    protection: Protection = Protection()
    #: most bytes per second from a node to the file system and other nodes; infinity for no limit
    flush_bandwidth: float = math.inf
    #: largest fraction of the time that the job may spend writing to the shared file system. With a
    #: ``flush_bandwidth``, that is the limit instead.
    flush_share: float = FLUSH_SHARE

    @property
    def nodes(self) -> int:
        """Number of nodes; may exceed the machine's, for a what-if."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def ranks_on_node(self) -> int:
        """Ranks on a full node."""
        return min(self.ranks, self.ranks_per_node)

    @property
    def crowding(self) -> float:
        """The factor by which computing takes longer because ranks share the cores of a node."""
        return self.machine.crowding(self.ranks_on_node)

    def leaves_held(self, above_bytes: int = -1) -> int:
        """The most leaves of more than ``above_bytes`` on any rank."""
        count = np.zeros(self.ranks, dtype=np.int64)
        for groups in self.state.on(self.ranks):
            count[groups.ranks] += np.count_nonzero(groups.leaves.nbytes > above_bytes)
        return int(count.max())

    def shares(self) -> Shares:
        """The shares of the ranks, by the partitioner."""
        return self.state.shares(self.ranks, self.strategy, self.machine.memory.kappa_bytes)

    @property
    def local_write(self) -> float:
        """Bytes per second at which all ranks of a node together write to its storage."""
        return min(self.machine.local.write, self.machine.local.rank_write * self.ranks_per_node)


def times_of(job: Job, shares: Shares) -> Times:
    """Seconds of every stage of one checkpoint of a job."""
    if job.strategy == TORCH_SAVE:
        return _torch_save(job, shares)
    machine, protection = job.machine, job.protection
    nodes = job.nodes
    raw = by_node(shares.nbytes, job.ranks_per_node)
    spans = by_node(shares.spans, job.ranks_per_node)
    memory = machine.memory
    crowding = job.crowding
    held = job.leaves_held()
    handled = spans * crowding  # tensors, by processes that share cores
    copying = finish_times(raw, memory.copy, memory.node_copy)
    deferring, capture = 0.0, copying + handled * memory.tensor
    if job.capture == "lazy":
        deferring, capture = _deferred(job, handled, copying)
    ratio, encode_rate = codec_of(job, shares)
    encoded = raw * ratio
    encode = encoded * 0 if math.isinf(encode_rate) else raw / encode_rate
    nothing = np.zeros(nodes)
    local = local_end = persistent = persistent_end = np.zeros_like(raw)
    if protection.local:
        local_end = np.where(encoded > 0, machine.local.file, 0.0) + handled * machine.local.tensor
        local = finish_times(encoded, machine.local.rank_write, machine.local.write) + local_end
    partner = _partner(job, encoded) if protection.partner and nodes > 1 else nothing
    parity = _parity(job, encoded) if protection.parity_group else nothing
    if protection.persistent:
        manifest = machine.persistent.leaf * held * crowding
        persistent_end = metadata_s(job, encoded) + handled * machine.persistent.tensor + manifest
        persistent_end = np.where(encoded > 0, persistent_end, 0.0)
        persistent = _persistent(job, encoded) + persistent_end
    flat = slice(0, job.ranks)
    return Times(
        plan=_plan_s(job, held),
        capture=capture.ravel()[flat],
        encode=encode.ravel()[flat],
        local=local.ravel()[flat],
        local_end=local_end.ravel()[flat],
        partner=partner,
        parity=parity,
        persistent=persistent.ravel()[flat],
        persistent_end=persistent_end.ravel()[flat],
        commit=machine.persistent.commit,
        cores=_cores_s(job, raw, encoded, ratio, encode_rate).ravel()[flat],
        encoded=encoded.ravel()[flat],
        raw=raw.ravel()[flat],
        files=int(np.count_nonzero(encoded)) if protection.persistent else 0,
        spans=int(shares.spans.max()),
        lazy=job.capture == "lazy",
        deferring=deferring,
        limited=_limited_s(job, encoded),
    )


def _deferred(job: Job, handled: FloatArray, copying: FloatArray) -> tuple[float, FloatArray]:
    """(seconds of a lazy call, which copies small tensors and guards others; seconds of each rank's later copies)."""
    tensors = np.concatenate([groups.leaves.nbytes for groups in job.state.on(job.ranks)])
    small = tensors <= SMALL_LEAF_BYTES
    memory, few, little = job.machine.memory, float(small.mean()), float(tensors[small].sum() / max(1, tensors.sum()))
    as_such = memory.defer_call * job.crowding if few < 1 else 0.0
    guards = as_such + float(handled.max()) * (1 - few) * memory.defer
    at_once = copying * little + handled * memory.tensor * few
    later = copying * (1 - little) / memory.late + handled * (memory.tensor + memory.late_tensor) * (1 - few)
    return guards + float(at_once.max()), later


def _cores_s(job: Job, raw: FloatArray, encoded: FloatArray, ratio: float, encode_rate: float) -> FloatArray:
    """Seconds that the cores of each node need until the chunks of all its ranks are written, if these are encoded."""
    if math.isinf(encode_rate):
        return np.zeros_like(raw)
    machine, protection = job.machine, job.protection
    work = raw * (machine.encoding_threads(job.ranks_on_node) / encode_rate)
    if protection.local:  # the measured rate includes the digests, which encoding threads compute here
        work = work + encoded * max(0.0, 1 / machine.local.work - 1 / machine.memory.hash)
    if protection.persistent:
        work = work + encoded / machine.persistent.work
    needed = work.sum(axis=1, keepdims=True) / machine.cores
    return np.where(raw > 0, needed, 0.0)


def _torch_save(job: Job, shares: Shares) -> Times:
    """One stream to the file system or, without that level, to the node's storage; all ranks wait for its end."""
    machine, protection = job.machine, job.protection
    raw = by_node(shares.nbytes, job.ranks_per_node)
    stream = streams_s(machine, raw, by_node(shares.spans, job.ranks_per_node))
    local = persistent = np.zeros_like(raw)
    if protection.persistent:
        alone = replace(job, flush_bandwidth=math.inf)
        persistent = np.where(raw > 0, _persistent(alone, raw) + metadata_s(alone, raw), 0.0)
    elif protection.local:
        local = finish_times(raw, machine.local.rank_write, machine.local.write)
        local += np.where(raw > 0, machine.local.file, 0.0)
    flat, nothing, none = slice(0, job.ranks), np.zeros(job.nodes), np.zeros(job.ranks)
    return Times(
        plan=_meeting_s(job), capture=stream.ravel()[flat], encode=np.zeros(job.ranks),
        local=local.ravel()[flat], local_end=none, partner=nothing, parity=nothing,
        persistent=persistent.ravel()[flat], persistent_end=none, cores=none,
        encoded=raw.ravel()[flat], raw=raw.ravel()[flat], spans=int(shares.spans.max()), lazy=False, waits=True,
        files=int(np.count_nonzero(raw)) if protection.persistent else 0,
    )  # fmt: skip


def codec_of(job: Job, shares: Shares) -> tuple[float, float]:
    """(bytes after / before, bytes per second of one rank's threads) of the job's codec; 1 and infinity without it."""
    if job.compression == "none":
        return 1.0, math.inf
    ratio = seconds = 0.0
    threads = job.machine.encoding_threads(job.ranks_on_node)
    for dtype, share in shares.by_dtype.items():
        codec = job.machine.codecs.get(dtype)
        ratio += share * (codec.ratio if codec else 1.0)
        seconds += share / codec.encode if codec else 0.0
    # The encoding thread computes the digests of a chunk before and after.
    rate = threads / (seconds + (1 + ratio) / job.machine.memory.hash) if seconds else math.inf
    if job.compression == "auto" and not _pays(job, ratio, rate):
        return 1.0, math.inf
    return ratio, rate


def _pays(job: Job, ratio: float, rate: float) -> bool:
    """True if encoding and writing ends sooner than writing raw, at the slowest level of the checkpoint."""
    machine, on_node, rates = job.machine, job.ranks_on_node, [math.inf]
    if job.protection.local:
        rates.append(min(machine.local.rank_write, machine.local.write / on_node))
    if job.protection.persistent:
        persistent = machine.persistent
        shared = persistent.write * (1 - persistent.others) / job.nodes
        node = min(persistent.node_write, job.flush_bandwidth, shared)
        rates.append(min(persistent.rank_write, node / on_node))
    each = min(rates)
    return max(1 / rate, ratio / each) < 1 / each


def _plan_s(job: Job, held: int) -> float:
    machine = job.machine
    memory, alone = machine.memory, job.ranks == 1
    looking = memory.call + memory.leaf * held
    if not alone:
        looking += memory.compare * held + memory.compare_large * job.leaves_held(SMALL_LEAF_BYTES)
    return looking * job.crowding + _meeting_s(job)


def _meeting_s(job: Job) -> float:
    """Seconds of one exchange among all ranks."""
    return 0.0 if job.ranks == 1 else 2 * job.machine.network.latency * math.ceil(math.log2(job.ranks))


def _partner(job: Job, encoded: FloatArray) -> FloatArray:
    """Every node sends its parts to the next node, and stores those of the previous one."""
    machine = job.machine
    out = encoded.sum(axis=1)
    into = np.roll(out, 1)
    most = np.maximum(out, into)
    moved = np.maximum(most / machine.network.bandwidth, limited_s(most, job.flush_bandwidth))
    stored = into / job.local_write
    copying = encoded.max() * job.crowding / machine.network.copies  # one thread of a rank
    times: FloatArray = np.maximum(np.maximum(moved, stored), copying) + machine.local.file + machine.network.latency
    return times


def _parity(job: Job, encoded: FloatArray) -> FloatArray:
    """Members of a set exchange blocks, encode one stripe of each row, and store its parity."""
    machine, protection = job.machine, job.protection
    group = protection.parity_group
    if job.nodes < group:
        raise ConfigError(
            "there are fewer nodes than a parity group has",
            expected=f"at least {group} nodes, or a smaller group",
            found=f"{job.nodes} nodes",
            where="--parity",
            todo="take more ranks, fewer on each node, or a smaller --parity",
        )
    stored = _parity_bytes(protection, encoded)
    sent = _sent_for_parity(protection, encoded)  # each node receives as much
    moved = np.maximum(sent / machine.network.bandwidth, limited_s(sent, job.flush_bandwidth))
    encoding = encoded.max() * job.crowding / machine.network.parity
    writing = stored / job.local_write
    slowest = np.maximum(np.maximum(moved, encoding), writing)
    times: FloatArray = slowest + machine.local.file + machine.network.exchange + group * machine.network.latency
    return times


def _parity_bytes(protection: Protection, encoded: FloatArray) -> float:
    """Bytes of parity that a node stores."""
    group, tolerate = protection.parity_group, protection.parity_tolerate
    longest = encoded.max(axis=0)  # the c-th parts of a group's nodes are a set
    stripes = [Stripes(group, tolerate, block_bytes_for(group), int(part)) for part in longest]
    return float(sum(each.parity_bytes for each in stripes))


def _sent_for_parity(protection: Protection, encoded: FloatArray) -> FloatArray:
    """Bytes that each node sends: all of its blocks, which others encode, and the parity that others store."""
    tolerate = protection.parity_tolerate
    sent: FloatArray = encoded.sum(axis=1) + _parity_bytes(protection, encoded) * (tolerate - 1) / tolerate
    return sent


def _limited_s(job: Job, encoded: FloatArray) -> float:
    """Seconds until everything that leaves a node has passed the job's limit; 0 unless both flush and protection do."""
    protection = job.protection
    to_nodes = np.zeros(job.nodes)
    if protection.partner and job.nodes > 1:
        to_nodes += encoded.sum(axis=1)
    if protection.parity_group:
        to_nodes += _sent_for_parity(protection, encoded)
    if not (protection.persistent and to_nodes.any()):
        return 0.0
    return float(limited_s(to_nodes + encoded.sum(axis=1), job.flush_bandwidth).max())


def _persistent(job: Job, encoded: FloatArray) -> FloatArray:
    """Every rank writes its part as fast as its node and the job's limit allow."""
    persistent = job.machine.persistent
    left = persistent.write * (1 - persistent.others)
    free = finish_times_of_all(encoded, persistent.rank_write, persistent.node_write, left)
    # Every rank has its fraction of the node's limit, even if other ranks do not use theirs.
    members = np.count_nonzero(by_node(np.ones(job.ranks), job.ranks_per_node), axis=1, keepdims=True)
    times: FloatArray = np.maximum(free, limited_s(encoded * members, job.flush_bandwidth))
    return times


def metadata_s(job: Job, encoded: FloatArray) -> float:
    """Seconds at the persistent level that do not depend on bytes."""
    persistent = job.machine.persistent
    return persistent.file + int(np.count_nonzero(encoded)) / persistent.files
