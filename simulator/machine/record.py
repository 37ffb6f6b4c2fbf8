"""A machine as numbers: what copying, encoding, writing, sending, failing and coming back cost on it.

Every number is a field of a small record with its unit; :mod:`deeppart_simulator.machine.files` reads and writes them
as TOML. Bandwidths are in bytes per second, times in seconds.
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

    read: Callable[[object], Any]  # from a TOML value
    words: str  # the expected value, for messages
    least: float = 0.0  # smallest value
    above: bool = False  # true if ``least`` itself is too small
    most: float = math.inf  # largest value; infinity where there is none
    endless: bool = False  # true if infinity is possible
    text: bool = False  # true if it is no number


@dataclass(frozen=True, slots=True)
class Words:
    """The kind of a field that is one of some words."""

    allowed: tuple[str, ...]  # all of them


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


#: Bytes per second. Slower is nothing that moves checkpoints, but a rate whose unit was forgotten.
LEAST_RATE = 1e6
#: A file system, a drive, what it may take: smaller is a number whose unit was forgotten.
LEAST_BYTES = 1e6
#: More share no node; the simulator lays out so many places on every node.
MOST_RANKS_PER_NODE = 4096
#: A hundred times as many as the largest machines have.
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
#: The default of what a machine file need not say, and what depends on it is then not said either.
NOT_SAID = math.inf
DAY_S = 86_400.0
SHAPE = Kind(_number, "a number above 0, at most 100", above=True, most=100.0)


def of(kind: Kind, default: Any = None) -> Any:
    """A field of a kind; without a default it must be in every machine file."""
    if default is None:
        return field(metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})


# --- ways to come back ------------------------------------------------------------------------------------------------


#: Pieces of the time until a restore begins, and the first step after it; in the order in which they come.
PIECES = ("detect", "requeue", "replace", "relaunch", "imports", "communicator", "first_step")
#: Whatever the way: the failure is noticed, all ranks meet again, and a first step is taken.
_ALWAYS = frozenset({"detect", "communicator", "first_step"})
#: Nothing is left that could be kept; the nodes are the same, so none is replaced.
_ALL_STOPPED = frozenset(PIECES) - {"replace"}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to come back: beside the pieces that are always paid, those after the loss of a process, or of nodes."""

    words: str  # what happens
    process: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def after(self, kinds: Iterable[str]) -> frozenset[str]:
        """The pieces that are paid once where failures of some classes struck before training went on."""
        paid = {"process": self.process, "system": _ALL_STOPPED}
        return _ALWAYS.union(*(paid.get(kind, self.nodes) for kind in kinds))


#: By name, each with a piece less than the one before. The job waits for the slower of two: the processes of nodes that
#: are well, and those that take the place of lost ones. So a spare node that has imported everything spares no imports
#: as long as all others import, too.
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
    """The speed of a rank's memory: the copy while training waits, and digests."""

    copy: float = of(RATE)  # of one rank alone, from live tensors (on a GPU: from there to the host)
    node_copy: float = of(RATE)  # of all ranks of a node together
    tensor: float = of(SECONDS, 3e-6)  # for one more tensor in a share, whatever its size
    call: float = of(SECONDS, 1e-3)  # for a ``checkpoint()`` as such
    leaf: float = of(SECONDS, 2e-6)  # for each leaf of the state, on every rank: taking the state apart
    compare: float = of(SECONDS, 1e-6)  # for each leaf besides, where there are other ranks to compare with
    compare_large: float = of(SECONDS, 0.0)  # for each leaf above 64 KiB besides, where there are
    defer_call: float = of(SECONDS, 0.0)  # of a lazy capture as such, beside planning
    #: of a lazy capture, for each tensor that is copied in the background: to notice writes to it until then
    defer: float = of(SECONDS, 15e-6)
    #: how fast a copy in the background is, as a share of how fast one is that training waits for
    late: float = of(RATIO, 1.0)
    #: for each tensor that is copied in the background, beside what it takes while training waits
    late_tensor: float = of(SECONDS, 0.0)
    hash: float = of(RATE, 16e9)  # digests of chunks, on one thread of those that encode
    #: for a restore as such: which checkpoints there are, and what is read from where
    restore: float = of(SECONDS, 10e-3)
    restored_leaf: float = of(SECONDS, 20e-6)  # for each leaf of the state that is restored, on every rank

    @property
    def kappa_bytes(self) -> float:
        """Bytes that could be copied in the time that one more tensor takes: what the partitioner calls kappa."""
        return self.tensor * self.copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The codec made for tensors, on one dtype."""

    ratio: float = of(RATIO)  # bytes after encoding / before
    encode: float = of(RATE)  # encode, decode: of one thread, bytes before encoding
    decode: float = of(RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Storage on each node."""

    write: float = of(RATE)  # write, read: of the node, all ranks together, digests and synchronization included
    read: float = of(RATE)
    rank_write: float = of(RATE, math.inf)  # rank_write, rank_read: of one rank alone
    rank_read: float = of(RATE, math.inf)
    #: for a part file: create, synchronize, rename, and the round in which ranks agree that all have one
    file: float = of(SECONDS, 1e-3)
    tensor: float = of(SECONDS, 2e-6)  # for one more tensor in a part: its entries in the tables
    #: bytes of a part that one core digests and writes per second of its time, whether or not storage lets it wait;
    #: infinity where that is nothing to speak of
    work: float = of(RATE, math.inf)
    capacity: float = of(BYTES, NOT_SAID)  # bytes of the node's drives together
    endurance: float = of(BYTES, NOT_SAID)  # bytes that may be written to them in all, as "TBW" is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Between nodes."""

    bandwidth: float = of(RATE)  # of a node, in each direction
    latency: float = of(SECONDS, 2e-6)  # of a message
    #: bytes of parts per second that one rank sends to another node, while it takes in and stores as many
    copies: float = of(RATE, math.inf)
    #: bytes of parts per second that one rank digests, passes on, encodes and digests again, all on one thread
    parity: float = of(RATE, 2.5e9)
    #: bytes of one lost part per second that the ranks of its set rebuild: reading, passing on and computing, and
    #: loading what has been rebuilt
    rebuild: float = of(RATE, 1.5e9)
    #: for parity, or a rebuild from it, as such: agreeing that all have the memory, telling each other of the parts,
    #: opening files, and comparing digests at the end
    exchange: float = of(SECONDS, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistent:
    """The parallel file system."""

    write: float = of(RATE)  # write, read: of the whole, for this job
    read: float = of(RATE)
    node_write: float = of(RATE)  # node_write, node_read: of one node
    node_read: float = of(RATE)
    rank_write: float = of(RATE, math.inf)  # rank_write, rank_read: of one rank
    rank_read: float = of(RATE, math.inf)
    file: float = of(SECONDS, 5e-3)  # for a part file and its share of the commit
    #: from when the parts are on the nodes until the step is committed, where the flush has kept up with them
    commit: float = of(SECONDS, 0.0)
    tensor: float = of(SECONDS, 2e-6)  # for one more tensor in a part
    leaf: float = of(SECONDS, 2e-6)  # for each leaf of the whole state: rank 0 writes its type into the manifest
    #: bytes of a part that one core reads back, digests and passes on to the file system per second of its time
    work: float = of(RATE, math.inf)
    files: float = of(PER_SECOND, 20_000.0)  # part files that the metadata servers create per second
    others: float = of(SHARE, 0.0)  # share of the bandwidth that other jobs take, on average
    capacity: float = of(BYTES, NOT_SAID)  # bytes of the whole
    quota: float = of(BYTES, NOT_SAID)  # bytes of it that the job may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Serialize:
    """One stream of ``torch.save``: what the baseline pays for every byte, one after the other, on one core."""

    #: of one rank alone, from the device to memory that is not pinned, as ``torch.save`` does it tensor by tensor;
    #: infinity where tensors are in the host's memory
    copy: float = of(RATE, math.inf)
    node_copy: float = of(RATE, math.inf)  # the same of all ranks of a node together
    #: a pickle and a zip archive with a CRC-32 of each tensor, written through the page cache
    stream: float = of(RATE, 1.24e9)
    tensor: float = of(SECONDS, 24.3e-6)  # for one more tensor, whatever its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that fail together since they share something: a switch, a rack, a power supply.

    Node number n of a job is in group number n // ``nodes``, whatever the kind: a job's nodes are taken to be next to
    each other in the machine.
    """

    nodes: int = of(COUNT)  # in a group
    mtbf: float = of(MTBF)  # mean time between failures of one group
    #: until its nodes are back; as ``repair`` of ``[restart]`` if not given. Where a switch or the power is back, nodes
    #: are, sooner than one that is broken.
    repair: float = of(SECONDS, NOT_SAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Mean times between failures, by what fails together. "never" switches a class off."""

    process: float = of(MTBF, math.inf)  # of one process; the node's storage survives
    node: float = of(MTBF, math.inf)  # of one node, with its storage
    system: float = of(MTBF, math.inf)  # of everything at once: all node-local storage is lost
    #: of the Weibull distribution of the times between failures; 1 is exponential, below 1 they come in bursts (B.
    #: Schroeder and G. Gibson, DSN 2006, found 0.7 to 0.8).
    shape: float = of(SHAPE, 1.0)
    #: name -> nodes that fail together (a switch, a rack), with their storage: ``[groups.NAME]`` in a file
    groups: Mapping[str, Group] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The times between a failure and training, but for the restore; and which of them a job pays for.

    Where there are two numbers, the second is for each rank: a piece takes ``imports + ranks * imports_rank``. A file
    that only has ``detect``, ``relaunch`` and ``replace`` means by ``relaunch`` all until the model is built.
    """

    detect: float = of(SECONDS, 30.0)  # until a failure is noticed
    #: requeue, requeue_rank: until the scheduler has given the job its nodes again, others for those that are lost
    requeue: float = of(SECONDS, 0.0)
    requeue_rank: float = of(SECONDS, 0.0)
    #: until a spare node has replaced a lost one, if there is one. While the job is in the queue anyway, only what is
    #: longer than that counts.
    replace: float = of(SECONDS, 60.0)
    relaunch: float = of(SECONDS, 120.0)  # until the launcher has started the processes
    #: imports, imports_rank: until these have imported Python's modules and built the model. From a shared file system
    #: it takes longer the more processes read; from the nodes' own storage it does not.
    imports: float = of(SECONDS, 0.0)
    imports_rank: float = of(SECONDS, 0.0)
    #: communicator, communicator_rank: until all ranks can talk to each other (NCCL, MPI)
    communicator: float = of(SECONDS, 0.0)
    communicator_rank: float = of(SECONDS, 0.0)
    #: so much longer than others takes the first step, with what is compiled or allocated then
    first_step: float = of(SECONDS, 0.0)
    repair: float = of(SECONDS, DAY_S)  # until a lost node is back
    #: the way to come back, one of :data:`WAYS`
    mode: str = field(default="job", metadata={"kind": Words(tuple(WAYS))})

    def seconds(self, ranks: int) -> dict[str, float]:
        """Piece -> what it takes with so many ranks, whether or not the job pays for it."""
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
    """What the machine costs its user."""

    currency: str = of(CURRENCY, "")  # of the numbers; to be given with them
    node_hour: float = of(MONEY, NOT_SAID)  # of a node for an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine."""

    name: str  # name, source: of the numbers
    source: str = ""
    nodes: int = of(NODES)  # how many there are; a job that takes more is a what-if
    ranks_per_node: int = of(PER_NODE)  # usual for it
    #: of a node, for the ranks on it; what they compute takes longer where there are more ranks than cores
    cores: int = of(COUNT, 64)
    encode_threads: int = of(COUNT, 4)  # that a rank encodes with, at most
    #: time that training loses to the background, as a share of what the background takes where nothing trains. Where
    #: ranks share cores the background lasts longer beside training; what it costs does not change.
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
        """The factor by which computing takes longer if so many ranks share a node's cores."""
        return max(1.0, ranks_on_node / self.cores)

    def encoding_threads(self, ranks_on_node: int) -> float:
        """Cores that one rank encodes with while all ranks of the node do.

        The library leaves one of a rank's own cores to training (deeppart/session/topology.py).
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
