"""Published checkpoint times beside the model's predictions. Nothing here is measured.

Each case is simulated as it was measured: a whole checkpoint by the library in question, with its way of dividing the
state, until the function returns. None is by deeppart. Of MLPerf Storage's results, those with a stated storage
bandwidth are used: Azure Managed Lustre is sold by bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..machine.files import read_machine
from ..machine.record import Machine
from ..workload.shapes import WORKLOADS
from ..workload.states import State, read_state
from .stages import (
    TORCH_SAVE,
    FloatArray,
    Job,
    Protection,
    by_node,
    device_copies_s,
    finish_times,
    finish_times_of_all,
    streams_s,
    times_of,
)

#: Largest relative difference that counts as reproduced.
TARGET = 0.25
#: TorchSnapshot's ``take`` of an empty state, and the cost of each tensor of each rank, whose manifest entry rank 0
#: gathers and writes as YAML. Measured with 0.1.0 (docs/simulator.md, "Beside published figures").
TAKE_S, TAKE_ENTRY_S = 0.035, 27e-6
#: Bytes per second and core at which FTI's local level digests with MD5 and writes: 512 MiB on each of two cores took
#: 0.862 s (docs/benchmarks.md, "Beside FTI").
FTI_CORE = 0.62e9

TORCHSNAPSHOT = "TorchSnapshot, benchmarks/ddp, 2022"
MLPERF = "MLPerf Storage v3.0, Azure, 2026"
THESIS = "M. Perelló Bacardit, UPC 2023"
#: 200 float32 parameters of 100 MB each, as in TorchSnapshot's benchmark.
_PARAMETERS = "tensors-200x100MB"
_THESIS_RANKS, _THESIS_WIDTH = 64, 4


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number beside the model's."""

    source: str
    case: str
    unit: str  # "s", or "x" for a speed-up over ``torch.save``
    published: float
    simulated: float
    why: str  # what the number depends on, or the reason for the difference
    #: true if the machine file has a number from this figure, which is then no test of the model
    given: bool = False

    @property
    def difference(self) -> float:
        """The relative difference of simulated to published."""
        return self.simulated / self.published - 1

    @property
    def reproduced(self) -> bool:
        """Whether the model is within :data:`TARGET` without having been given this number."""
        return not self.given and abs(self.difference) <= TARGET


def figures() -> list[Figure]:
    """All published figures, with the model's predictions."""
    return [*_torchsnapshot(), *_mlperf(), *_thesis()]


def torch_save_s(machine: Machine, state: State, ranks: int, width: int, *, persistent: bool) -> float:
    """Seconds of ``torch.save`` by rank 0."""
    job = Job(state, machine, ranks, width, TORCH_SAVE, protection=Protection(persistent=persistent))
    return times_of(job, state.shares(ranks, TORCH_SAVE, 0)).blocked_s


def take_s(machine: Machine, state: State, ranks: int, width: int, *, persistent: bool) -> float:
    """Seconds of TorchSnapshot's ``take``: whole tensors, copied while others are written, without digests."""
    nbytes = by_node(state.shares(ranks, "whole", 0).nbytes, width)
    stored = _stored_s(machine, nbytes, persistent=persistent)
    moved = np.maximum(device_copies_s(machine, nbytes), stored)
    return TAKE_S + TAKE_ENTRY_S * len(state.tensors) * ranks + float(moved.max())


def prototype_s(machine: Machine, state: State, ranks: int, width: int, *, compressed: bool) -> float:
    """Seconds of a checkpoint by the thesis: each rank serializes its share, which FTI then digests and writes to the
    file system.
    """
    shares = state.shares(ranks, "deeppart", machine.serialize.tensor * machine.serialize.stream)
    nbytes, tensors = by_node(shares.nbytes, width), by_node(shares.spans, width)
    serialized = streams_s(machine, nbytes, tensors)
    if compressed:
        codec = machine.codecs["float32"]
        serialized = serialized + nbytes / codec.encode
        nbytes = nbytes * codec.ratio
    times = serialized + nbytes / FTI_CORE + _stored_s(machine, nbytes, persistent=True)
    return float(times.max()) + machine.persistent.file


def _stored_s(machine: Machine, nbytes: FloatArray, *, persistent: bool) -> float:
    """Seconds until storage has the bytes of all ranks, which write at the same time."""
    if not persistent:
        return float(finish_times(nbytes, machine.local.rank_write, machine.local.write).max())
    storage = machine.persistent
    left = storage.write * (1 - storage.others)
    return float(finish_times_of_all(nbytes, storage.rank_write, storage.node_write, left).max())


_SAVED = "copies from the GPU at an A100's published rate, then what a stream takes here"
_LUSTRE_SAVED = _SAVED + "; what Lustre adds to one stream is not known"
_TAKEN = "the node's rate is from the row with 8 ranks; it holds on more nodes, and one rank has the most tensors"
_GIVEN = "gives the node's rate: eight GPUs alone would take 1.9 s, and what holds them back was not published"
_LUSTRE_GIVEN = "gives the rate of a node to Lustre, whose size was not published"


def _torchsnapshot() -> Iterator[Figure]:
    machine, state = read_machine("p4d"), read_state(_PARAMETERS)
    rows: tuple[tuple[bool, float, tuple[tuple[int, int, float], ...]], ...] = (
        (False, 32.0, ((1, 1, 13.91), (8, 8, 3.38), (16, 8, 2.02), (32, 8, 1.29))),
        (True, 38.0, ((1, 1, 14.52), (8, 8, 7.61), (16, 8, 4.61), (32, 8, 2.68))),
    )
    for lustre, saved, takes in rows:
        where = "FSx for Lustre" if lustre else "local"
        seconds = torch_save_s(machine, state, 8, 8, persistent=lustre)
        why = _LUSTRE_SAVED if lustre else _SAVED
        yield Figure(TORCHSNAPSHOT, f"torch.save, {where}", "s", saved, seconds, why)
        for ranks, width, published in takes:
            seconds = take_s(machine, state, ranks, width, persistent=lustre)
            given = ranks == 8
            why = (_LUSTRE_GIVEN if lustre else _GIVEN) if given else _TAKEN if ranks > 1 else "the copy from the GPU"
            case = f"take, {where}, {ranks // width} x {width}"
            yield Figure(TORCHSNAPSHOT, case, "s", published, seconds, why, given)


def _mlperf() -> Iterator[Figure]:
    rates = read_machine("azure-lustre").persistent  # for the rates of one rank; the others are each result's
    for result in RESULTS:
        name, storage_s = result.workload.removeprefix("mlperf-").upper(), result.size * 2**30 / result.storage
        nbytes = by_node(WORKLOADS[result.workload].rank_bytes(), result.ranks_per_host)
        left, given = result.storage * (1 - rates.others), result.workload == GIVEN
        for what, rate, published in (
            ("write", rates.rank_write, result.save_s), ("read", rates.rank_read, result.load_s),
        ):  # fmt: skip
            simulated = float(finish_times_of_all(nbytes, rate, result.link, left).max())
            why = "gives the rate of one rank, or of a host's four; what holds them back was not published"
            if not given:
                at_rate = simulated > 1.01 * storage_s
                why = "all ranks at that rate" if at_rate else "the bandwidth the storage is sold with"
                why += "" if at_rate else f", {result.storage / 1e9:g} GB/s"
            if published < 0.99 * storage_s:
                why += "; measured was more than that"
            case = f"{name}, {what}, {result.hosts} x {result.ranks_per_host}"
            yield Figure(MLPERF, case, "s", published, simulated, why, given)


def _thesis() -> Iterator[Figure]:
    machine = read_machine("cte-power")
    rows = (
        ("20 GB", "bert-48x1664x30522+adam", False, 5.6),
        ("BERT-large", "bert-large", False, 2.1),
        ("BERT-large, compressed", "bert-large", True, 2.7),
    )
    for case, name, compressed, published in rows:
        state = read_state(name)

        def faster(ranks: int, state: State = state, compressed: bool = compressed) -> float:
            saved = torch_save_s(machine, state, ranks, _THESIS_WIDTH, persistent=True)
            return saved / prototype_s(machine, state, ranks, _THESIS_WIDTH, compressed=compressed)

        reached = next((ranks for ranks in range(1, _THESIS_RANKS) if faster(ranks) >= published), _THESIS_RANKS)
        simulated = faster(_THESIS_RANKS)
        why = f"so much on {reached} ranks; how many, which storage and which times, is not known"
        yield Figure(THESIS, f"{case}, 16 x 4", "x", published, simulated, why)


@dataclass(frozen=True, slots=True)
class Result:
    """A pair of published times, and the setup in which they were measured."""

    workload: str  # name, as a state
    hosts: int
    storage: float  # nominal bytes per second of the storage
    link: float  # bytes per second of a host
    save_s: float  # save_s, load_s: means of ten checkpoints
    load_s: float
    size: float  # size of the checkpoint, in units of 2^30 bytes, as in the results

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each host."""
        return WORKLOADS[self.workload].processes // self.hosts


#: github.com/mlcommons/storage_results_v3.0, closed/Azure/results/AMLFS-Durable-Premium-125-*, summary.json, July 2026.
RESULTS = (
    Result("mlperf-8b", 2, 20e9, 25e9, 7.8587829, 7.0989051, 104.70452117919922),
    Result("mlperf-70b", 16, 160e9, 25e9, 8.6469579, 7.380531, 911.2121276855469),
    Result("mlperf-405b", 128, 512e9, 12.5e9, 11.7573436, 12.3946725, 5292.248718261719),
    Result("mlperf-1t", 128, 512e9, 12.5e9, 24.6310298, 32.2666942, 15426.589264154434),
)
#: The result that the rate of one rank in the machine file is taken from.
GIVEN = "mlperf-8b"
