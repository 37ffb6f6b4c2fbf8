"""Calibration and validation: real checkpoints, under real MPI; what comes out is never judged by its speed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent, Serialize
from deeppart_simulator.measure import calibrate as module
from deeppart_simulator.measure.calibrate import Measured, calibrate, machine_from
from deeppart_simulator.measure.fitting import Sample
from deeppart_simulator.measure.start import Directories
from deeppart_simulator.measure.validate import CASES, as_nodes, predict
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.states import read_state

from deeppart.cli.calibrate.tasks import RESTORE, SaveTask
from deeppart.model import LEVELS, Level
from tests.simulator.measure.samples import PIECES, samples_of


def test_parity_work_and_guards_are_found_again() -> None:
    """Of 4 ranks on the cores that there are; each rate is that of a rank with a core of its own."""
    shares = ((64 << 20, 16), (128 << 20, 64))
    crowding = max(1.0, 4 / len(os.sched_getaffinity(0)))
    measured = Measured(
        [replace(each, seconds={**each.seconds, "work": 0.01 + each.share_bytes / 1e9}) for each in samples_of(4)],
        PIECES,
        [Sample(4, nbytes, tensors, {"work": 0.02 + nbytes / 4e9}) for nbytes, tensors in shares],
        [
            Sample(
                4,
                nbytes,
                tensors,
                {"partner": 2e-3 + nbytes / 0.3e9, "parity": 0.05 + nbytes / 0.5e9, "rebuild": 0.048 + nbytes / 0.25e9},
            )
            for nbytes, tensors in shares
        ],
        defer=(0.5e-3, 30e-6),
        interference=0.3,
    )
    machine = machine_from("round", 4, Measured(samples_of(1), PIECES), measured)
    assert machine.local.work == pytest.approx(4e9, rel=0.01)
    assert 1 / (1 / machine.local.work + 1 / machine.persistent.work) == pytest.approx(1e9, rel=0.01)
    assert machine.network.copies == pytest.approx(0.3e9 * crowding, rel=0.01)
    assert machine.network.parity == pytest.approx(0.5e9 * crowding, rel=0.01)
    assert machine.network.rebuild == pytest.approx(0.25e9 * crowding, rel=0.01)
    assert machine.network.exchange == pytest.approx(0.05 - 2e-3, rel=0.02)  # the file itself takes 2 ms
    assert machine.memory.defer == pytest.approx(30e-6 / crowding)
    assert machine.memory.defer_call == pytest.approx(0.5e-3 / crowding) and machine.interference == 0.3


def test_the_file_system_is_read_as_fast_as_restores_from_it_tell() -> None:
    """40 MB/s, where the node reads a hundred times as fast: a slow directory is slow for who comes back, too.

    A restore as such takes 1 ms, and the model has the 5 ms of a file beside it.
    """
    fetched = [Sample(1, nbytes, 16, {"restore": 6e-3 + nbytes / 40e6}) for nbytes in (64 << 20, 128 << 20)]
    alone = Measured(samples_of(1), PIECES, fetched=fetched)
    machine = machine_from("slow", 1, alone, alone)
    assert machine.persistent.rank_read == machine.persistent.read == pytest.approx(40e6, rel=0.02)
    assert machine.local.rank_read > 1e9
    # What opening takes there beside is in the bytes: a state as large as the measured ones is back when it was.
    later = [replace(each, seconds={"restore": each.seconds["restore"] + 0.1}) for each in fetched]
    alone = replace(alone, fetched=later)
    job = Job(read_state(f"tensors-16x{4 << 20}"), machine_from("later", 1, alone, alone), 1, 1)
    back_s = restore_s(job, job.shares(), {Level.PERSISTENT: 1})
    assert back_s == pytest.approx(later[0].seconds["restore"], rel=0.03)
    usual = machine_from("usual", 1, Measured(samples_of(1), PIECES), Measured(samples_of(1), PIECES))
    assert usual.persistent.rank_read == usual.local.rank_read, "as the node's, where nobody has looked"


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
