"""A machine on which everything takes exactly as long as the model says is found again, and predicts all cases."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent, Serialize
from deeppart_simulator.measure import calibrate as module
from deeppart_simulator.measure.calibrate import calibrate
from deeppart_simulator.measure.start import Directories
from deeppart_simulator.measure.validate import CASES, as_nodes, predict
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.states import read_state

from deeppart.cli.calibrate.tasks import RESTORE, SaveTask
from deeppart.model import LEVELS, Level

CODEC = {"ratio": 0.83, "encode": 0.5e9, "decode": 1.6e9}
HERE = Directories(Path("/nowhere"), Path("/nowhere"))


def machine_of(ranks: int) -> Machine:
    """Of several ranks, on the cores that there are: no two of its numbers are alike."""
    cores = len(os.sched_getaffinity(0))
    write, read = min(ranks * 0.8e9, 1.2e9), min(ranks * 0.6e9, 0.9e9)
    return Machine(
        name="exact", nodes=1, ranks_per_node=ranks, cores=cores, encode_threads=max(1, min(4, cores - 1)),
        interference=0.1,
        memory=Memory(
            copy=8e9, node_copy=12e9, tensor=4e-6, call=2e-3, leaf=3e-6, compare=2e-6, compare_large=4e-6,
            defer_call=0.6e-3, defer=20e-6, late=0.6, late_tensor=8e-6, hash=16e9, restore=12e-3, restored_leaf=25e-6,
        ),
        local=Local(
            write=min(ranks * 2e9, 5e9), read=min(ranks * 1.5e9, 4e9), rank_write=2e9, rank_read=1.5e9, file=3e-3,
            tensor=2e-6, work=4e9,
        ),
        network=Network(bandwidth=5e9, latency=2e-6, copies=1.3e9, parity=1e9, rebuild=0.5e9, exchange=5e-3),
        persistent=Persistent(
            write=write, read=read, node_write=write, node_read=read, rank_write=0.8e9, rank_read=0.6e9,
            file=6e-3, commit=4e-3, tensor=5e-6, leaf=2e-6, work=2e9,
        ),
        serialize=Serialize(stream=1.2e9, tensor=2e-5),
        codecs={"float32": Codec(**CODEC)},
    )  # fmt: skip


def taken(machine: Machine, ranks: int, task: SaveTask) -> dict[str, list[float]]:
    """What is measured of such checkpoints on the machine."""
    job = Job(
        read_state(f"tensors-{task.tensors}x{task.nbytes // task.tensors // 4 * 4}"),
        as_nodes(machine, ranks) if task.nodes else machine,
        ranks,
        ranks_per_node=1 if task.nodes else ranks,
        compression=task.compression,
        capture=task.capture,
        protection=Protection(task.local, task.partner, task.parity_group, persistent=task.persistent),
    )
    times, found = times_of(job, job.shares()), predict(machine, ranks, task, alone_s=1.0)
    complete = times.complete()
    if task.after == RESTORE:
        level = Level.LOCAL if task.local else Level.PERSISTENT
        found["restore"] = restore_s(job, job.shares(), {level: job.nodes})
    work = 1 / machine.local.work + task.persistent / machine.persistent.work
    row = {"capture": float(times.capture.max()), "blocked": times.blocked_s, "work": work * task.nbytes / ranks}
    row |= {level: complete.get(level, 0.0) for level in LEVELS}
    row |= {"alone": 1.0, "trained": found["trained"], "restore": found["restore"]}
    return {name: [seconds] * 2 for name, seconds in row.items()}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("quick", [False, True])
def test_it_is_found_again_and_predicts_everything(ranks: int, quick: bool) -> None:
    machine = machine_of(ranks)

    def measure(ranks: int, saves: Sequence[SaveTask], *_: Any, sessions: int) -> dict[str, Any]:
        assert sessions > 0
        network = {"bandwidth": 5e9, "latency": 2e-6} if ranks > 1 else None
        pieces = {"codec": {"float32": CODEC}, "hash": 16e9, "parity": 2.5e9, "network": network}
        pieces["serialize"] = {"stream": 1.2e9, "tensor": 2e-5}
        return {"saves": [taken(machine, ranks, task) for task in saves], "pieces": pieces}

    with patch.object(module, "measure", measure):
        found = calibrate("found", ranks, HERE, quick=quick)
    if ranks > 1:  # one alone compares nothing, and shares with nobody
        for each in fields(Memory):
            numbers = getattr(machine.memory, each.name), getattr(found.memory, each.name)
            assert numbers[1] == pytest.approx(numbers[0], rel=0.01), each.name
        assert found.network.copies == pytest.approx(machine.network.copies)
    assert found.persistent.commit in (pytest.approx(machine.persistent.commit), 0.0), "unknown where flushes wait"
    for case in CASES:
        if case.least_ranks <= ranks:
            task = case.on(ranks, 2, shards=1)
            real, predicted = (predict(one, ranks, task, alone_s=0.2) for one in (machine, found))
            for what in case.what:
                assert predicted[what] == pytest.approx(real[what], rel=3e-3), (case.kind, what)
