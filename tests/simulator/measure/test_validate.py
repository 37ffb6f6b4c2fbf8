"""Predictions against measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.machine.files import machine_toml, read_machine
from deeppart_simulator.measure.calibrate import Measured, machine_from
from deeppart_simulator.measure.validate import Comparison, Validation, predict, shards_of
from deeppart_simulator.workload.layout import read_layout

from deeppart.cli.calibrate.tasks import SaveTask
from tests.simulator.measure.samples import PIECES, samples_of


def test_a_machine_from_samples_predicts_them(tmp_path: Path) -> None:
    machine = machine_from("round", 2, Measured(samples_of(1), PIECES), Measured(samples_of(2), PIECES))
    assert machine.memory.copy == pytest.approx(10e9) and machine.memory.node_copy == pytest.approx(16e9)
    assert machine.memory.kappa_bytes == pytest.approx(40e3)
    assert machine.memory.hash == 16e9
    assert (machine.serialize.stream, machine.serialize.tensor) == (1.5e9, 2e-5)
    assert machine.memory.leaf == pytest.approx(2e-6) and machine.memory.compare == pytest.approx(3e-6, rel=0.01)
    assert (machine.local.rank_write, machine.local.write) == pytest.approx((2e9, 3e9))
    assert list(machine.codecs) == ["float32"]  # what does not shrink is stored raw
    file = tmp_path / "machine.toml"
    file.write_text(machine_toml(machine))
    again = read_machine(str(file))
    for ranks in (1, 2):
        for sample in samples_of(ranks):
            save = SaveTask(sample.share_bytes * ranks, sample.share_tensors * ranks, persistent=True)
            found = predict(again, ranks, save)
            for what in ("blocked", "local", "persistent"):
                before = 0.0 if what == "blocked" else sample.seconds["blocked"]
                assert found[what] == pytest.approx(before + sample.seconds[what], rel=0.02), (ranks, sample, what)


def test_errors_of_a_validation() -> None:
    def comparison(predicted: float, measured: float, **noise: float) -> Comparison:
        return Comparison("plain", 1, 1, 1, None, "blocked", predicted, measured, measured, measured, **noise)

    good = Validation((comparison(1.04, 1.0), comparison(0.97, 1.0), comparison(1.12, 1.0)))
    assert good.median_error == pytest.approx(0.04) and good.worst_error == pytest.approx(0.12) and good.met
    assert Validation((comparison(1.0, 1.0), comparison(0.8, 1.0), comparison(1.0, 1.0))).met is False
    # An error smaller than what measurements of the same differ by counts, too, but may be the measurement's.
    noisy = Validation((comparison(1.3, 1.0, spread=0.4), comparison(1.3, 1.0, varied=0.2), comparison(1.0, 1.0)))
    assert len(noisy.missed) == 2 and not noisy.met
    assert [each.varied for each in noisy.of_the_model] == [0.2]


@pytest.mark.parametrize(("layout", "shards"), [("fsdp", 4), ("hsdp=2", 2), ("tp=2", 2), ("tp=1", 1)])
def test_layouts_that_can_be_measured(layout: str, shards: int) -> None:
    assert shards_of(read_layout(layout), 4) == shards
    machine = machine_from("round", 4, Measured(samples_of(1), PIECES), Measured(samples_of(4), PIECES))
    save = SaveTask(64 << 20, 64, persistent=True, shards=shards)
    # All of the state is shared out evenly, whoever holds it: these are as quick as replicas, up to the spans.
    found, replicated = predict(machine, 4, save, read_layout(layout)), predict(machine, 4, save)
    assert found["persistent"] == pytest.approx(replicated["persistent"], rel=0.1)
