"""A machine as numbers: the costs of copying, encoding, writing, sending, failures and restarts.

Every number is a field of a small record; :mod:`deeppart_simulator.machine.files` reads and writes them as TOML.
Bandwidths are in bytes per second, times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deeppart.model import WORDS, read_bytes, read_rate, read_seconds

# --- kinds of fields --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a field: how it is read, and its possible values."""

    read: Callable[[object], Any]  # converts a TOML value
    words: str  # the expected value, for messages
    least: float = 0.0  # smallest value
    above: bool = False  # true if ``least`` itself is not allowed
    most: float = math.inf  # largest value
    endless: bool = False  # true if infinity is allowed
    text: bool = False  # true for text instead of a number


@dataclass(frozen=True, slots=True)
class Words:
    """The kind of a field with one of several words."""

    allowed: tuple[str, ...]


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError("a number")


def _whole(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("a whole number")


def _word(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and 0 < len(value) < 9 and " " not in value:
        return value
    raise ValueError("a short word")


def _mtbf(value: object) -> float:
    return math.inf if value == "never" else read_seconds(value)


#: Lowest bandwidth, bytes per second: anything below is a number without its unit.
LEAST_RATE = 1e6
#: Smallest size of a file system or drive: anything below is a number without its unit.
LEAST_BYTES = 1e6
#: Limits memory: the simulator has an entry for each possible rank of each node.
MOST_RANKS_PER_NODE = 4096
#: A hundred times the size of the largest machines.
MOST_NODES = 10_000_000
RATE = Kind(read_rate, WORDS["rate"] + ", at least 1 MB/s", least=LEAST_RATE)
SECONDS = Kind(read_seconds, WORDS["seconds"] + ", at least 0")
MTBF = Kind(_mtbf, WORDS["seconds"] + ', above 0, or "never"', above=True, endless=True)
COUNT = Kind(_whole, "a whole number, at least 1", least=1)
PER_NODE = Kind(_whole, f"a whole number from 1 to {MOST_RANKS_PER_NODE}", least=1, most=MOST_RANKS_PER_NODE)
NODES = Kind(_whole, f"a whole number from 1 to {MOST_NODES:,}", least=1, most=MOST_NODES)
SHARE = Kind(_number, "a number from 0 to below 1", most=math.nextafter(1.0, 0.0))
RATIO = Kind(_number, "a number above 0, at most 1.1", above=True, most=1.1)
PER_SECOND = Kind(_number, "a number per second, above 0", above=True)
BYTES = Kind(read_bytes, WORDS["bytes"] + ", at least 1 MB", least=LEAST_BYTES)
CURRENCY = Kind(_word, 'a currency, such as "USD"', text=True)
MONEY = Kind(_number, "a number, at least 0")
#: Default of optional numbers; results that depend on them are left out then.
NOT_SAID = math.inf
DAY_S = 86_400.0
SHAPE = Kind(_number, "a number above 0, at most 100", above=True, most=100.0)


def of(kind: Kind, default: Any = None) -> Any:
    """Declare a field of a kind; without a default it is required in every machine file."""
    if default is None:
        return field(metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})


# --- ways to restart --------------------------------------------------------------------------------------------------


#: Pieces of the time until a restore begins, and the first step after it, in order.
PIECES = ("detect", "requeue", "replace", "relaunch", "imports", "communicator", "first_step")
#: Pieces of every way: the failure is noticed, all ranks connect, and a first step is made.
_ALWAYS = frozenset({"detect", "communicator", "first_step"})
#: Pieces after a failure of the whole system: everything but replacing nodes.
_ALL_STOPPED = frozenset(PIECES) - {"replace"}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to restart: the pieces after the loss of a process or of nodes, besides those of every way."""

    words: str  # description
    process: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def after(self, kinds: Iterable[str]) -> frozenset[str]:
        """The pieces of one restart after failures of these classes."""
        paid = {"process": self.process, "system": _ALL_STOPPED}
        return _ALWAYS.union(*(paid.get(kind, self.nodes) for kind in kinds))


#: By name; each needs one piece less than the one before. A job waits for both its surviving nodes and replacements: a
#: spare node that has imported everything saves no time as long as all others have to import, too.
WAYS: Mapping[str, Way] = {
    "job": Way(
        "the scheduler starts the whole job again",
        ("requeue", "relaunch", "imports"),
        ("requeue", "replace", "relaunch", "imports"),
    ),
    "allocation": Way(
        "a launcher starts all processes again on the nodes that the job holds",
        ("relaunch", "imports"),
        ("replace", "relaunch", "imports"),
    ),
    "spares": Way(
        "likewise, and the job holds spare nodes that are ready to run",
        ("relaunch", "imports"),
        ("relaunch", "imports"),
    ),
    "standby": Way(
        "likewise, and on every node processes wait that have imported everything", ("relaunch",), ("relaunch",)
    ),
    "in-process": Way("processes that are well stay, and waiting ones take the place of lost ones"),
}


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of a rank: the copy for which training waits, and digests."""

    copy: float = of(RATE)  # of one rank alone, from live tensors (from the GPU to the host, if they are there)
    node_copy: float = of(RATE)  # of all ranks of a node together
    tensor: float = of(SECONDS, 3e-6)  # for each tensor in a share, besides its bytes
    call: float = of(SECONDS, 1e-3)  # for each ``checkpoint()``
    leaf: float = of(SECONDS, 2e-6)  # for flattening each leaf of the state, on every rank
    compare: float = of(SECONDS, 1e-6)  # for comparing each leaf, if there are other ranks
    compare_large: float = of(SECONDS, 0.0)  # the same for each leaf above 64 KiB, in addition
    defer_call: float = of(SECONDS, 0.0)  # for each lazy capture, besides planning
    #: for each tensor that a lazy capture copies in the background: detecting writes to it until then
    defer: float = of(SECONDS, 15e-6)
    #: rate of copies in the background / rate of copies for which training waits
    late: float = of(RATIO, 1.0)
    #: for each tensor that is copied in the background, in addition to ``tensor``
    late_tensor: float = of(SECONDS, 0.0)
    hash: float = of(RATE, 16e9)  # digests of chunks, on one encoding thread
    #: for each restore: finding checkpoints and planning what to read
    restore: float = of(SECONDS, 10e-3)
    restored_leaf: float = of(SECONDS, 20e-6)  # for each restored leaf, on every rank

    @property
    def kappa_bytes(self) -> float:
        """Bytes that could be copied in the time that one more tensor takes: the partitioner's kappa."""
        return self.tensor * self.copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The tensor codec, for one dtype."""

    ratio: float = of(RATIO)  # bytes after encoding / before
    encode: float = of(RATE)  # encode, decode: of one thread, in bytes before encoding
    decode: float = of(RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The storage of each node."""

    write: float = of(RATE)  # write, read: of all ranks of the node together, with digests and fsync
    read: float = of(RATE)
    rank_write: float = of(RATE, math.inf)  # rank_write, rank_read: of one rank alone
    rank_read: float = of(RATE, math.inf)
    #: for each part file: create, fsync, rename, and the commit round
    file: float = of(SECONDS, 1e-3)
    tensor: float = of(SECONDS, 2e-6)  # for each tensor in a part: its entries in the tables
    #: bytes of a part that one core digests and writes per second of processor time; infinity if negligible
    work: float = of(RATE, math.inf)
    capacity: float = of(BYTES, NOT_SAID)  # bytes of the node's drives together
    endurance: float = of(BYTES, NOT_SAID)  # bytes that may be written to the drives over their life ("TBW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between nodes."""

    bandwidth: float = of(RATE)  # of a node, in each direction
    latency: float = of(SECONDS, 2e-6)  # of a message
    #: bytes of parts per second that one rank sends to another node while it receives and stores as many
    copies: float = of(RATE, math.inf)
    #: bytes of parts per second for parity on one thread of a rank: digesting, sending, encoding, digesting again
    parity: float = of(RATE, 2.5e9)
    #: bytes per second at which the ranks of a set rebuild a lost part: reading, sending, computing, loading the result
    rebuild: float = of(RATE, 1.5e9)
    #: for each encoding of parity or rebuild from it: agreeing on memory, exchanging part records, opening files, and
    #: comparing digests
    exchange: float = of(SECONDS, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistent:
    """The parallel file system."""

    write: float = of(RATE)  # write, read: of the whole file system, for this job
    read: float = of(RATE)
    node_write: float = of(RATE)  # node_write, node_read: of one node
    node_read: float = of(RATE)
    rank_write: float = of(RATE, math.inf)  # rank_write, rank_read: of one rank
    rank_read: float = of(RATE, math.inf)
    file: float = of(SECONDS, 5e-3)  # for each part file, with its share of the commit
    #: from the end of the local parts until the step is committed, if the flush has kept up with them
    commit: float = of(SECONDS, 0.0)
    tensor: float = of(SECONDS, 2e-6)  # for each tensor in a part
    leaf: float = of(SECONDS, 2e-6)  # for each leaf of the whole state: rank 0 writes its type into the manifest
    #: bytes of a part that one core reads back, digests and writes per second of processor time
    work: float = of(RATE, math.inf)
    files: float = of(PER_SECOND, 20_000.0)  # part files that the metadata servers create per second
    others: float = of(SHARE, 0.0)  # share of the bandwidth that other jobs take, on average
    capacity: float = of(BYTES, NOT_SAID)  # bytes of the file system
    quota: float = of(BYTES, NOT_SAID)  # bytes that the job may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Serialize:
    """One stream of ``torch.save``, the baseline, on one core."""

    #: of one rank alone, from the device to memory that is not pinned, tensor by tensor; infinity if tensors are in the
    #: host's memory
    copy: float = of(RATE, math.inf)
    node_copy: float = of(RATE, math.inf)  # the same of all ranks of a node together
    #: a pickle and a zip archive with a CRC-32 of each tensor, written through the page cache
    stream: float = of(RATE, 1.24e9)
    tensor: float = of(SECONDS, 24.3e-6)  # for each tensor, besides its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that fail together because they share a switch, a rack or a power supply.

    Node n of a job is in group n // ``nodes``: the nodes of a job are assumed to be adjacent.
    """

    nodes: int = of(COUNT)  # in a group
    mtbf: float = of(MTBF)  # mean time between failures of one group
    #: until its nodes are back, which is sooner than the repair of a broken node; default: ``repair`` of ``[restart]``
    repair: float = of(SECONDS, NOT_SAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Mean times between failures, by failure class. "never" turns a class off."""

    process: float = of(MTBF, math.inf)  # of one process; the node's storage survives
    node: float = of(MTBF, math.inf)  # of one node with its storage
    system: float = of(MTBF, math.inf)  # of the whole system: all node-local storage is lost
    #: of the Weibull distribution of the times between failures; 1 is exponential, below 1 failures come in bursts (B.
    #: Schroeder and G. Gibson, DSN 2006, found 0.7 to 0.8).
    shape: float = of(SHAPE, 1.0)
    #: name -> nodes that fail together with their storage (a switch, a rack): ``[groups.NAME]`` in a file
    groups: Mapping[str, Group] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The pieces of the time between a failure and training, without the restore, and the way to restart.

    A second number ``..._rank`` is for each rank: ``imports + ranks * imports_rank``. If a file has only ``detect``,
    ``relaunch`` and ``replace``, then ``relaunch`` is everything until the model is built.
    """

    detect: float = of(SECONDS, 30.0)  # until a failure is noticed
    #: requeue, requeue_rank: until the scheduler has given the job nodes again
    requeue: float = of(SECONDS, 0.0)
    requeue_rank: float = of(SECONDS, 0.0)
    #: until a spare node, if any, has replaced a lost one. After a requeue only the time beyond that counts.
    replace: float = of(SECONDS, 60.0)
    relaunch: float = of(SECONDS, 120.0)  # until the launcher has started the processes
    #: imports, imports_rank: until the processes have imported modules and built the model. From a shared file system
    #: this takes longer the more processes read, from node-local storage it does not.
    imports: float = of(SECONDS, 0.0)
    imports_rank: float = of(SECONDS, 0.0)
    #: communicator, communicator_rank: until all ranks are connected (NCCL, MPI)
    communicator: float = of(SECONDS, 0.0)
    communicator_rank: float = of(SECONDS, 0.0)
    #: by how much the first step takes longer than others, for compilation and allocation
    first_step: float = of(SECONDS, 0.0)
    repair: float = of(SECONDS, DAY_S)  # until a lost node is back
    #: the way to restart, one of :data:`WAYS`
    mode: str = field(default="job", metadata={"kind": Words(tuple(WAYS))})

    def seconds(self, ranks: int) -> dict[str, float]:
        """Piece -> seconds with this number of ranks, for every way to restart."""
        return {
            "detect": self.detect,
            "requeue": self.requeue + ranks * self.requeue_rank,
            "replace": self.replace,
            "relaunch": self.relaunch,
            "imports": self.imports + ranks * self.imports_rank,
            "communicator": self.communicator + ranks * self.communicator_rank,
            "first_step": self.first_step,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of the machine."""

    currency: str = of(CURRENCY, "")  # required with a price
    node_hour: float = of(MONEY, NOT_SAID)  # of one node for one hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine."""

    name: str
    source: str = ""  # of the numbers
    nodes: int = of(NODES)  # a job with more nodes is a what-if
    ranks_per_node: int = of(PER_NODE)  # the usual number
    #: of a node; computing takes longer if more ranks share them
    cores: int = of(COUNT, 64)
    encode_threads: int = of(COUNT, 4)  # most encoding threads of a rank
    #: time that training loses to the background / time that the background takes without training. If ranks share
    #: cores, the background takes longer during training, but costs the same.
    interference: float = of(SHARE, 0.02)
    memory: Memory
    local: Local
    network: Network
    persistent: Persistent
    serialize: Serialize = field(default_factory=Serialize)
    failures: Failures = field(default_factory=Failures)
    restart: Restart = field(default_factory=Restart)
    price: Price = field(default_factory=Price)
    #: dtype -> the codec on it; a dtype without one is stored as it is
    codecs: Mapping[str, Codec] = field(default_factory=dict)

    def crowding(self, ranks_on_node: int) -> float:
        """The factor by which computing takes longer if this many ranks share a node's cores."""
        return max(1.0, ranks_on_node / self.cores)

    def encoding_threads(self, ranks_on_node: int) -> float:
        """Cores with which one rank encodes while all ranks of the node do.

        The library leaves one of a rank's cores to training (deeppart/session/topology.py).
        """
        threads = max(1, min(self.encode_threads, self.cores // ranks_on_node - 1))
        return min(float(threads), self.cores / ranks_on_node)

    def with_failures(self, factor: float) -> Machine:
        """The same machine with mean times between failures multiplied by ``factor``."""
        old = self.failures
        groups = {name: replace(group, mtbf=group.mtbf * factor) for name, group in old.groups.items()}
        failures = replace(
            old,
            process=old.process * factor,
            node=old.node * factor,
            system=old.system * factor,
            groups=groups,
        )
        return replace(self, failures=failures)
