"""The time of each stage of one checkpoint, from the shares that the partitioner made and the machine's numbers.

The stages are the library's (docs/architecture.md, "A save, step by step"): planning and the copy block training;
encoding, the part file on the node, copies, parity and the flush follow in the background. Times are those of the
slowest rank or node, since ranks meet in the next stage. Overlapped, chunks are encoded while others are written, and
the flush follows the local file as it grows; serial, one stage begins where the one before ends.
The strategy "rank0" is ``torch.save`` (:mod:`.serializing`): training waits for all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.plan.interval import FLUSH_SHARE
from deeppart.plan.redundancy import Stripes, block_bytes_for

from ..machine.record import Machine
from ..workload.sharing import Shares
from ..workload.states import State
from .bandwidth_sharing import FloatArray, by_node, finish_times, finish_times_of_all
from .serializing import streams_s

#: Stages in the order in which tables and timelines show them.
STAGES = ("plan", "capture", "encode", Level.LOCAL, Level.PARTNER, Level.PARITY, Level.PERSISTENT)
COMPRESSIONS = ("none", "tensor", "auto")
#: The strategy that stands for ``torch.save`` on the lowest rank that holds a tensor, while all ranks wait.
TORCH_SAVE = "rank0"
#: What the persistent level gets: a file for each rank, or one for each node.
FILES = ("rank", "node")


@dataclass(frozen=True, slots=True)
class Protection:
    """The levels to which a checkpoint goes.

    Attributes:
        local: the nodes' own storage.
        partner: a copy on another node.
        parity_group: nodes in a parity group; 0 for no parity.
        parity_tolerate: of them, how many may be lost.
        persistent: the parallel file system.
    """

    local: bool = True
    partner: bool = True
    parity_group: int = 0
    parity_tolerate: int = 1
    persistent: bool = True

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
    """A job on a machine.

    Attributes:
        state: its state.
        machine: the machine on which it runs.
        ranks: how many.
        ranks_per_node: on each node.
        strategy: of the partitioner.
        compression: "none", "tensor" or "auto".
        capture: "eager" or "lazy".
        protection: the levels.
        flush_bandwidth: most bytes per second of a node to the file system and other nodes; infinity for no limit.
        files: "rank" or "node": what is written to the file system.
        flush_share: of the time, that the job means to be writing to the file system at most, which others use too.
            With a ``flush_bandwidth`` that is the limit, and it may write all the time.
    """

    state: State
    machine: Machine
    ranks: int
    ranks_per_node: int
    strategy: str = "deeppart"
    compression: str = "none"
    capture: str = "eager"
    protection: Protection = Protection()
    flush_bandwidth: float = math.inf
    flush_share: float = FLUSH_SHARE
    files: str = "rank"

    @property
    def nodes(self) -> int:
        """Number of nodes; the machine may have fewer, and the job is a what-if then."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def ranks_on_node(self) -> int:
        """Ranks on a full node."""
        return min(self.ranks, self.ranks_per_node)

    @property
    def leaves_held(self) -> int:
        """Leaves on the rank that has most of them."""
        count = np.zeros(self.ranks, dtype=np.int64)
        for groups in self.state.on(self.ranks):
            count[groups.ranks] += len(groups.leaves)
        return int(count.max())

    def shares(self) -> Shares:
        """Its state among its ranks, as the partitioner deals it out."""
        return self.state.shares(self.ranks, self.strategy, self.machine.memory.kappa_bytes)

    @property
    def local_write(self) -> float:
        """Bytes per second that a node's storage takes from all ranks on it."""
        return min(self.machine.local.write, self.machine.local.rank_write * self.ranks_per_node)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Seconds of one checkpoint.

    Attributes:
        plan: planning and agreement, on every rank.
        capture: float64[ranks], the copy of the share.
        encode: float64[ranks], with all encoding threads.
        local: float64[ranks], writing the part, without encoding.
        partner: float64[nodes], sending and storing copies.
        parity: float64[nodes], exchanging, encoding and storing parity.
        persistent: float64[ranks], writing to the file system.
        encoded: float64[ranks], bytes of the parts.
        raw: float64[ranks], bytes of the shares.
        files: created on the file system, without the manifest.
        spans: most spans of a rank.
        lazy: true if the copy is made in the background.
        waits: true if training waits for all of it; then ``capture`` is the stream of ``torch.save``.
    """

    plan: float
    capture: FloatArray
    encode: FloatArray
    local: FloatArray
    partner: FloatArray
    parity: FloatArray
    persistent: FloatArray
    encoded: FloatArray
    raw: FloatArray
    files: int
    spans: int
    lazy: bool
    waits: bool = False

    @property
    def blocked_s(self) -> float:
        """Training waits for so long."""
        if self.waits:
            return self.serial_s()
        return self.plan + (0.0 if self.lazy else float(self.capture.max()))

    def stages(self) -> dict[str, float]:
        """Stage -> seconds of the slowest."""
        found = {name: getattr(self, name) for name in STAGES[1:]}
        return {"plan": self.plan} | {name: float(times.max(initial=0.0)) for name, times in found.items()}

    def complete(self, *, overlapped: bool = True) -> dict[str, float]:
        """Level -> seconds from the call until it is complete on all ranks; levels that are off are left out."""
        took = self.stages()
        if self.waits:  # the storage takes bytes while others are serialized
            to = {Level.LOCAL: self.local, Level.PERSISTENT: self.persistent}
            return {name: self.plan + float(np.maximum(self.capture, at).max()) for name, at in to.items() if at.any()}
        captured = took["plan"] + took["capture"]
        done: dict[str, float] = {}
        ready = captured
        if took[Level.LOCAL]:
            stored = np.maximum(self.encode, self.local) if overlapped else self.encode + self.local
            ready = done[Level.LOCAL] = captured + float(stored.max())
        for level in REDUNDANT_LEVELS:
            if took[level]:
                ready = done[level] = ready + took[level]
        if took[Level.PERSISTENT]:
            if overlapped:
                behind = np.maximum(np.maximum(self.encode, self.local), self.persistent)
                done[Level.PERSISTENT] = captured + float(behind.max())
            else:
                encode = 0 if took[Level.LOCAL] else self.encode
                done[Level.PERSISTENT] = ready + float((self.persistent + encode).max())
        return done

    def serial_s(self) -> float:
        """Seconds of all stages, one after the other: what it takes where nothing is done in the background."""
        return max(self.complete(overlapped=False).values(), default=self.plan + float(self.capture.max()))


def times_of(job: Job, shares: Shares) -> Times:
    """Seconds of every stage of one checkpoint of a job.

    Args:
        shares: of the job's state among its ranks.

    Raises:
        ConfigError: the job has fewer nodes than a parity group.
    """
    if job.strategy == TORCH_SAVE:
        return _torch_save(job, shares)
    machine, protection = job.machine, job.protection
    nodes = job.nodes
    raw = by_node(shares.nbytes, job.ranks_per_node)
    spans = by_node(shares.spans, job.ranks_per_node)
    memory = machine.memory
    crowding = machine.crowding(job.ranks_on_node)
    held = job.leaves_held
    handled = spans * crowding  # tensors, by processes that share cores
    capture = finish_times(raw, memory.copy, memory.node_copy) + handled * memory.tensor
    ratio, encode_rate = codec_of(job, shares)
    encoded = raw * ratio
    encode = encoded * 0 if math.isinf(encode_rate) else raw / encode_rate
    nothing = np.zeros(nodes)
    local = persistent = np.zeros_like(raw)
    if protection.local:
        local = finish_times(encoded, machine.local.rank_write, machine.local.write)
        local += np.where(encoded > 0, machine.local.file, 0.0) + handled * machine.local.tensor
    partner = _partner(job, encoded) if protection.partner and nodes > 1 else nothing
    parity = _parity(job, encoded) if protection.parity_group else nothing
    if protection.persistent:
        manifest = machine.persistent.leaf * held * crowding
        persistent = _persistent(job, encoded) + handled * machine.persistent.tensor
        persistent = np.where(encoded > 0, persistent + manifest, 0.0)
    flat = slice(0, job.ranks)
    return Times(
        plan=_plan_s(job, held),
        capture=capture.ravel()[flat],
        encode=encode.ravel()[flat],
        local=local.ravel()[flat],
        partner=partner,
        parity=parity,
        persistent=persistent.ravel()[flat],
        encoded=encoded.ravel()[flat],
        raw=raw.ravel()[flat],
        files=files_created(job, encoded) if protection.persistent else 0,
        spans=int(shares.spans.max()),
        lazy=job.capture == "lazy",
    )


def _torch_save(job: Job, shares: Shares) -> Times:
    """One stream, to the file system or, without that level, to the node's storage; all ranks meet at its end."""
    machine, protection = job.machine, job.protection
    raw = by_node(shares.nbytes, job.ranks_per_node)
    stream = streams_s(machine, raw, by_node(shares.spans, job.ranks_per_node))
    local = persistent = np.zeros_like(raw)
    if protection.persistent:
        persistent = _persistent(replace(job, flush_bandwidth=math.inf, files="rank"), raw)
    elif protection.local:
        local = finish_times(raw, machine.local.rank_write, machine.local.write)
        local += np.where(raw > 0, machine.local.file, 0.0)
    flat, nothing = slice(0, job.ranks), np.zeros(job.nodes)
    return Times(
        plan=_meeting_s(job), capture=stream.ravel()[flat], encode=np.zeros(job.ranks),
        local=local.ravel()[flat], partner=nothing, parity=nothing, persistent=persistent.ravel()[flat],
        encoded=raw.ravel()[flat], raw=raw.ravel()[flat], spans=int(shares.spans.max()), lazy=False, waits=True,
        files=int(np.count_nonzero(raw)) if protection.persistent else 0,
    )  # fmt: skip


def codec_of(job: Job, shares: Shares) -> tuple[float, float]:
    """(bytes after / before, bytes per second of one rank's threads) of the job's codec on its mix of dtypes.

    Where nothing is encoded these are 1 and infinity. "auto" encodes where that ends sooner than writing raw does, as
    the library decides from what it measures.
    """
    if job.compression == "none":
        return 1.0, math.inf
    ratio = seconds = 0.0
    threads = job.machine.encoding_threads(job.ranks_on_node)
    for dtype, share in shares.by_dtype.items():
        codec = job.machine.codecs.get(dtype)
        ratio += share * (codec.ratio if codec else 1.0)
        seconds += share / codec.encode if codec else 0.0
    rate = threads / (seconds + 1 / job.machine.memory.hash) if seconds else math.inf
    if job.compression == "auto" and not _pays(job, ratio, rate):
        return 1.0, math.inf
    return ratio, rate


def _pays(job: Job, ratio: float, rate: float) -> bool:
    """True if encoding ends sooner than writing raw, at the last level to which the checkpoint goes."""
    each = _slowest_rate(job)
    return max(1 / rate, ratio / each) < 1 / each


def _slowest_rate(job: Job) -> float:
    """Bytes per second that a rank gets at the slowest level, all writing at a time."""
    machine, on_node = job.machine, job.ranks_on_node
    rates = [math.inf]
    if job.protection.local:
        rates.append(min(machine.local.rank_write, machine.local.write / on_node))
    if job.protection.persistent:
        rates.append(min(machine.persistent.rank_write, _node_write(job) / on_node))
    return min(rates)


def _node_write(job: Job) -> float:
    """Bytes per second of each node to the file system, all writing at a time."""
    persistent = job.machine.persistent
    shared = persistent.write * (1 - persistent.others) / job.nodes
    return min(persistent.node_write, job.flush_bandwidth, shared)


def _plan_s(job: Job, held: int) -> float:
    machine = job.machine
    memory, alone = machine.memory, job.ranks == 1
    looking = memory.call + (memory.leaf + (0.0 if alone else memory.compare)) * held
    return looking * machine.crowding(job.ranks_on_node) + _meeting_s(job)


def _meeting_s(job: Job) -> float:
    """Seconds of one exchange that all ranks take part in."""
    return 0.0 if job.ranks == 1 else 2 * job.machine.network.latency * math.ceil(math.log2(job.ranks))


def _partner(job: Job, encoded: FloatArray) -> FloatArray:
    """Every node sends its parts to the next one, and stores what comes from the one before."""
    machine = job.machine
    out = encoded.sum(axis=1)
    into = np.roll(out, 1)
    link = min(machine.network.bandwidth, job.flush_bandwidth)
    moved = np.maximum(out, into) / link
    stored = into / job.local_write
    times: FloatArray = np.maximum(moved, stored) + machine.local.file + machine.network.latency
    return times


def _parity(job: Job, encoded: FloatArray) -> FloatArray:
    """Members of a set exchange blocks, encode a stripe of each row, and store their parity."""
    machine, protection = job.machine, job.protection
    group, tolerate = protection.parity_group, protection.parity_tolerate
    if job.nodes < group:
        raise ConfigError(
            "there are fewer nodes than a parity group has",
            expected=f"at least {group} nodes, or a smaller group",
            found=f"{job.nodes} nodes",
            where="--parity",
            todo="take more ranks, fewer on each node, or a smaller --parity",
        )
    longest = encoded.max(axis=0)  # the c-th parts of a group's nodes make a set
    stripes = [Stripes(group, tolerate, block_bytes_for(group), int(part)) for part in longest]
    stored = float(sum(each.parity_bytes for each in stripes))
    data = encoded.sum(axis=1)
    # A node's blocks go to the members that encode them, all but those it encodes itself; of the parity that it
    # computes, all but its own share goes on. It gets as much as it sends.
    sent = data * (1 - 1 / group) + stored * (tolerate - 1) / tolerate
    moved = sent / min(machine.network.bandwidth, job.flush_bandwidth)
    encoding = longest.max() / machine.network.parity
    writing = stored / job.local_write
    slowest = np.maximum(np.maximum(moved, encoding), writing)
    times: FloatArray = slowest + machine.local.file + group * machine.network.latency
    return times


def _persistent(job: Job, encoded: FloatArray) -> FloatArray:
    """Every rank writes its part, as fast as its node, the job and the metadata servers allow."""
    persistent = job.machine.persistent
    node_write = min(persistent.node_write, job.flush_bandwidth)
    left = persistent.write * (1 - persistent.others)
    times = finish_times_of_all(encoded, persistent.rank_write, node_write, left)
    return np.where(encoded > 0, times + metadata_s(job, encoded), 0.0)


def files_created(job: Job, encoded: FloatArray) -> int:
    """Files that a checkpoint creates on the file system, without the manifest.

    Args:
        encoded: bytes of the parts, [node, rank on it].
    """
    return int(np.count_nonzero(encoded if job.files == "rank" else encoded.any(axis=1)))


def metadata_s(job: Job, encoded: FloatArray) -> float:
    """Seconds of a checkpoint at the persistent level that do not depend on its bytes.

    With node files, the other ranks of each node open what the lowest has created, each syncs its section, and then
    the lowest syncs and names the file; the ranks exchange what they need to know before and after writing.
    """
    persistent, created = job.machine.persistent, files_created(job, encoded)
    seconds = persistent.file + created / persistent.files
    if job.files == "rank":
        return seconds
    return seconds + persistent.file + int(np.count_nonzero(encoded)) / persistent.opens + 2 * _meeting_s(job)
