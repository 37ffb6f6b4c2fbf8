"""Calibration: what is measured of a machine that is known, by arithmetic, gives that machine again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deeppart_simulator.machine.files import machine_toml, read_machine
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent, Serialize
from deeppart_simulator.measure import calibrate as module
from deeppart_simulator.measure.calibrate import calibrate
from deeppart_simulator.measure.predict import predict
from deeppart_simulator.measure.start import Directories
from deeppart_simulator.measure.tasks import SaveTask
from deeppart_simulator.measure.validate import CASES

#: In a loop of its own: as much is saved within a checkpoint, at another speed.
LOOP = {"ratio": 0.83, "encode": 0.5e9, "decode": 1.6e9}
ENCODE, DECODE = 0.7, 0.6
HERE = Directories(Path("/nowhere"), Path("/nowhere"))


def machine_of(ranks: int) -> Machine:
    """Of several ranks, on the cores that there are: no two of its numbers are alike."""
    cores = len(os.sched_getaffinity(0))
    write, read = min(ranks * 0.8e9, 1.2e9), min(ranks * 0.6e9, 0.9e9)
    return Machine(
        name="exact", nodes=1, ranks_per_node=ranks, cores=cores, encode_threads=max(1, min(4, cores - 1)),
        interference=0.3,
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
        codecs={"float32": Codec(ratio=0.83, encode=ENCODE * LOOP["encode"], decode=DECODE * LOOP["decode"])},
    )  # fmt: skip


def measured_on(machine: Machine, change: Callable[[float], float] = lambda seconds: seconds) -> Any:
    """What measures such a machine."""

    def measure(ranks: int, saves: Sequence[SaveTask], *_: Any, sessions: int) -> dict[str, Any]:
        assert sessions > 0
        found = []
        for task in saves:
            seconds = {"alone": 1.0} | predict(machine, ranks, task, alone_s=1.0)
            found.append({what: [change(each)] * 2 for what, each in seconds.items()})
        return {
            "saves": found,
            "pieces": {
                "codec": {"float32": LOOP, "int64": {"ratio": 1.0, "encode": 1.0, "decode": 1.0}}, "hash": 16e9,
                "serialize": {"stream": 1.2e9, "tensor": 2e-5} if ranks == 1 else None,
                "network": {"bandwidth": 5e9, "latency": 2e-6} if ranks > 1 else None,
            },
        }  # fmt: skip

    return patch.object(module, "measure", measure)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("ranks", "quick"), [(1, False), (2, True), (4, False)])
def test_it_is_found_again_and_predicts_everything(ranks: int, quick: bool, tmp_path: Path) -> None:
    machine, file = machine_of(ranks), tmp_path / "machine.toml"
    with measured_on(machine):
        found = calibrate("found", ranks, HERE, quick=quick)
    if ranks > 1:  # one alone compares nothing, and shares with nobody
        for table in ("memory", "network", "persistent"):
            real, other = getattr(machine, table), getattr(found, table)
            for each in fields(real):
                assert getattr(other, each.name) == pytest.approx(getattr(real, each.name), rel=0.01), each.name
    assert found.local.work == pytest.approx(4e9, rel=0.01) and found.interference == pytest.approx(0.3, rel=0.01)
    assert found.codecs["float32"].encode == pytest.approx(machine.codecs["float32"].encode, rel=0.01)
    assert found.codecs["float32"].decode == pytest.approx(machine.codecs["float32"].decode, rel=0.01)
    assert list(found.codecs) == ["float32"] and found.serialize == machine.serialize and found.memory.hash == 16e9
    file.write_text(machine_toml(found))
    found = read_machine(str(file))
    for case in CASES:
        if case.least_ranks <= ranks:
            task = case.on(ranks, 2)
            real_s, predicted = (predict(one, ranks, task, alone_s=0.2) for one in (machine, found))
            for what in case.what:
                assert predicted[what] == pytest.approx(real_s[what], rel=3e-3), (case.kind, what)


def test_a_slow_file_system_is_slow_for_who_comes_back_too() -> None:
    """40 MB/s, where the node reads a hundred times as fast."""
    machine = machine_of(1)
    slow = replace(machine.persistent, rank_read=40e6, node_read=40e6, read=40e6)
    with measured_on(replace(machine, persistent=slow)):
        found = calibrate("slow", 1, HERE, quick=True)
    assert found.persistent.rank_read == found.persistent.read == pytest.approx(40e6, rel=0.02)
    assert found.local.rank_read > 1e9


def test_noise_leaves_a_machine_that_can_be_written_and_read(tmp_path: Path) -> None:
    """As if everything had taken the same time: no number of it is infinite, and none is impossible."""
    with measured_on(machine_of(2), lambda seconds: 0.1), patch.object(module, "_MOST_STEPS", 2):
        found = calibrate("noise", 2, HERE, quick=True)
    file = tmp_path / "machine.toml"
    file.write_text(machine_toml(found))
    assert read_machine(str(file)).memory.copy > 0
