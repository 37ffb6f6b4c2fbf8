"""One job on one machine, in round numbers."""

from __future__ import annotations

from dataclasses import replace

from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent
from deeppart_simulator.timing.stages import Job
from deeppart_simulator.workload.states import read_state

MACHINE = Machine(
    name="round numbers",
    nodes=64,
    ranks_per_node=4,
    encode_threads=2,
    memory=Memory(
        copy=10e9, node_copy=20e9, tensor=0.0, call=0.0, leaf=0.0, compare=0.0, restore=0.0, restored_leaf=0.0
    ),
    local=Local(write=2e9, read=4e9, rank_write=1e9, rank_read=4e9, file=0.0, tensor=0.0),
    network=Network(bandwidth=10e9, latency=0.0, parity=2e9),
    persistent=Persistent(
        write=8e9, read=8e9, node_write=1e9, node_read=1e9, file=0.0, tensor=0.0, leaf=0.0, files=1e12
    ),
    codecs={"float32": Codec(ratio=0.8, encode=1e9, decode=1e9)},
)


STATE = read_state("tensors-64x250MB")  # 16 GB


def job(ranks: int = 16, **changes: object) -> Job:
    return replace(Job(STATE, MACHINE, ranks, 4), **changes)
