"""Predictions against measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deeppart_simulator.machine.files import machine_toml, read_machine
from deeppart_simulator.machine.record import Codec
from deeppart_simulator.measure.calibrate import Measured, machine_from
from deeppart_simulator.measure.validate import CASES, Comparison, Validation, as_nodes, cases_of, predict, shards_of
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.layout import read_layout

from deeppart.cli.calibrate.tasks import SaveTask
from deeppart.errors import ConfigError
from tests.simulator.measure.samples import PIECES, samples_of
from tests.simulator.timing.jobs import MACHINE, STATE


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


def test_only_some_kinds() -> None:
    assert cases_of((), quick=False) == CASES
    found = cases_of(("compressed", "restore"), quick=False)
    assert [case.kind for case in found] == ["compressed", "restore"]
    with pytest.raises(ConfigError, match=r"(?s)no such kind.*did you mean restore"):
        cases_of(("restores",), quick=False)


def test_a_prediction_knows_what_a_lost_node_costs() -> None:
    machine = machine_from("round", 4, Measured(samples_of(1), PIECES), Measured(samples_of(4), PIECES))
    whole, lost = (
        predict(machine, 4, SaveTask(256 << 20, 64, persistent=True, nodes=True, parity_group=4, after=after))
        for after in ("restore", "lose")
    )
    machine_rate = machine.network.rebuild / 2  # on as many cores
    assert lost["restore"] - whole["restore"] >= (64 << 20) / machine_rate * 0.99


@pytest.mark.parametrize(("layout", "shards"), [("fsdp", 4), ("hsdp=2", 2), ("tp=2", 2), ("tp=1", 1)])
def test_layouts_that_can_be_measured(layout: str, shards: int) -> None:
    assert shards_of(read_layout(layout), 4) == shards
    machine = machine_from("round", 4, Measured(samples_of(1), PIECES), Measured(samples_of(4), PIECES))
    save = SaveTask(64 << 20, 64, persistent=True, shards=shards)
    # All of the state is shared out evenly, whoever holds it: these are as quick as replicas, up to the spans.
    found, replicated = predict(machine, 4, save, read_layout(layout)), predict(machine, 4, save)
    assert found["persistent"] == pytest.approx(replicated["persistent"], rel=0.1)


@pytest.mark.parametrize("layout", ["pp=2", "tp=2,hsdp=2", "zero1", "hsdp=3"])
def test_layouts_that_cannot(layout: str) -> None:
    with pytest.raises(ConfigError):
        shards_of(read_layout(layout), 4)


HOST = replace(
    MACHINE,
    nodes=1,
    ranks_per_node=4,
    cores=2,
    encode_threads=1,
    local=replace(MACHINE.local, work=2e9),
    persistent=replace(MACHINE.persistent, work=1e9),
    network=replace(MACHINE.network, copies=3e9),
    memory=replace(MACHINE.memory, defer_call=1e-3),
    codecs={"float32": Codec(ratio=0.8, encode=1e9, decode=2e9)},
)


def test_each_has_its_share_of_what_all_have_together() -> None:
    found = as_nodes(HOST, 4)
    assert (found.nodes, found.ranks_per_node, found.encode_threads) == (4, 1, 1)
    assert found.memory.copy == found.memory.node_copy == min(HOST.memory.copy, HOST.memory.node_copy / 4)
    assert found.local.write == min(HOST.local.rank_write, HOST.local.write / 4)
    assert found.cores == 1 and as_nodes(replace(HOST, cores=11), 4).cores == 2
    assert found.persistent.write == found.persistent.node_write == HOST.persistent.node_write
    # Four ranks on two cores compute half as fast, whatever they are taken for.
    assert found.memory.leaf == 2 * HOST.memory.leaf and found.codecs["float32"].encode == 0.5e9
    assert found.memory.hash == HOST.memory.hash / 2
    assert found.local.work == HOST.local.work / 2 and found.memory.defer == 2 * HOST.memory.defer
    assert (
        found.memory.defer_call == 2 * HOST.memory.defer_call > 0 and found.persistent.commit == HOST.persistent.commit
    )
    assert found.network.rebuild == HOST.network.rebuild / 2 and found.network.copies == 1.5e9
    assert found.network.parity == HOST.network.parity / 2 and found.network.bandwidth == HOST.network.bandwidth


@pytest.mark.parametrize("compression", ["none", "tensor"])
def test_checkpoints_without_redundancy_take_as_long_as_on_the_host(compression: str) -> None:
    protection = Protection(partner=False)
    host = Job(STATE, HOST, 4, 4, compression=compression, protection=protection)
    nodes = replace(host, machine=as_nodes(HOST, 4), ranks_per_node=1)
    shares = STATE.shares(4, kappa=HOST.memory.kappa_bytes)
    on_host, on_nodes = times_of(host, shares), times_of(nodes, shares)
    assert on_nodes.blocked_s == pytest.approx(on_host.blocked_s, rel=0.05)
    for level, seconds in on_host.complete().items():
        assert on_nodes.complete()[level] == pytest.approx(seconds, rel=0.05), level


def test_one_node_that_reads_alone_is_as_fast_as_one_rank_and_all_together_as_the_file_system() -> None:
    """Three have their parts; only the fourth one's 4 GB come from the file system, at 0.5 GB/s and not at 0.25."""
    host = replace(HOST, persistent=replace(HOST.persistent, read=1e9, node_read=1e9, rank_read=0.5e9))
    this = Job(STATE, as_nodes(host, 4), 4, 1, protection=Protection(partner=False))
    shares = STATE.shares(4, kappa=HOST.memory.kappa_bytes)
    beside_s = restore_s(this, shares, {"local": 4})
    reading_s = 4 / 1  # of its own storage, where four read at a time
    assert restore_s(this, shares, {"local": 3, "persistent": 1}) - beside_s == pytest.approx(4 / 0.5 - reading_s)
    assert restore_s(this, shares, {"persistent": 4}) - beside_s == pytest.approx(16 / 1 - reading_s)


def test_copies_of_a_lost_node_are_read_when_the_others_are_done() -> None:
    """Four ranks read 1 GB/s each together, and one of them alone 2 GB/s: its own 4 GB, and then the lost ones."""
    host = replace(HOST, local=replace(HOST.local, read=4e9, rank_read=2e9))
    job = Job(STATE, as_nodes(host, 4, "partner"), 4, 1)
    shares = STATE.shares(4, kappa=HOST.memory.kappa_bytes)
    back_s = restore_s(job, shares, {"local": 3, "partner": 1})
    nothing_lost_s = restore_s(replace(job, machine=as_nodes(host, 4)), shares, {"local": 4})
    assert back_s - nothing_lost_s == pytest.approx(4 / 2)
