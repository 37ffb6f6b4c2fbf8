"""Published results of MLPerf Storage's checkpoint workloads, and what the model says of the same.

Of the results that state the bandwidth of their storage: Azure Managed Lustre is sold by it. Every rank writes its
files, and reads them later, as DLIO does; a host's link, the storage, and the rate of one rank hold them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..machine.files import read_machine
from ..machine.record import Machine
from ..workload.mlperf import WORKLOADS, Workload
from .bandwidth_sharing import by_node, finish_times_of_all


@dataclass(frozen=True, slots=True)
class Result:
    """Two published numbers, and what they were measured on.

    Attributes:
        workload: its name, as a state.
        hosts: on which it ran.
        storage: bytes per second that the storage is sold with.
        link: bytes per second of a host.
        save_s, load_s: means of ten checkpoints.
        size: of the checkpoint, in units of 2^30 bytes, as the results have it.
    """

    workload: str
    hosts: int
    storage: float
    link: float
    save_s: float
    load_s: float
    size: float

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each of the hosts."""
        return WORKLOADS[self.workload].processes // self.hosts


#: github.com/mlcommons/storage_results_v3.0, closed/Azure/results/AMLFS-Durable-Premium-125-*, summary.json, July 2026.
RESULTS = (
    Result("mlperf-8b", 2, 20e9, 25e9, 7.8587829, 7.0989051, 104.70452117919922),
    Result("mlperf-70b", 16, 160e9, 25e9, 8.6469579, 7.380531, 911.2121276855469),
    Result("mlperf-405b", 128, 512e9, 12.5e9, 11.7573436, 12.3946725, 5292.248718261719),
    Result("mlperf-1t", 128, 512e9, 12.5e9, 24.6310298, 32.2666942, 15426.589264154434),
)
#: The result from which the machine file has the rate of one rank.
GIVEN = "mlperf-8b"


def machine_of(result: Result) -> Machine:
    """The preset, with the hosts and the storage of a result."""
    machine = read_machine("azure-lustre")
    storage, link = result.storage, result.link
    persistent = replace(machine.persistent, write=storage, read=storage, node_write=link, node_read=link)
    return replace(machine, nodes=result.hosts, ranks_per_node=result.ranks_per_host, persistent=persistent)


def save_s(machine: Machine, workload: Workload) -> float:
    """Seconds until the last rank has written its files."""
    storage = machine.persistent
    rates = (storage.rank_write, storage.node_write, storage.write * (1 - storage.others))
    return float(finish_times_of_all(by_node(workload.rank_bytes(), machine.ranks_per_node), *rates).max())


def load_s(machine: Machine, workload: Workload) -> float:
    """Seconds until the last rank has read them."""
    storage = machine.persistent
    rates = (storage.rank_read, storage.node_read, storage.read * (1 - storage.others))
    return float(finish_times_of_all(by_node(workload.rank_bytes(), machine.ranks_per_node), *rates).max())


def compared() -> Iterator[tuple[Result, str, float, float]]:
    """(result, "write" or "read", published seconds, simulated ones)."""
    for result in RESULTS:
        machine, workload = machine_of(result), WORKLOADS[result.workload]
        yield result, "write", result.save_s, save_s(machine, workload)
        yield result, "read", result.load_s, load_s(machine, workload)
