"""Ranks of a host that are taken for nodes: together they have what the host has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.machine.record import Codec
from deeppart_simulator.measure.validate import as_nodes
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of

from tests.simulator.timing.jobs import MACHINE, STATE

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


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_with_more_cores_than_ranks_encoding_takes_as_long_as_on_the_host(ranks: int) -> None:
    host = replace(HOST, cores=16, encode_threads=4)
    job = Job(STATE, host, ranks, ranks, compression="tensor", protection=Protection(partner=False))
    nodes = replace(job, machine=as_nodes(host, ranks), ranks_per_node=1)
    shares = STATE.shares(ranks, kappa=HOST.memory.kappa_bytes)
    on_host, on_nodes = times_of(job, shares), times_of(nodes, shares)
    assert on_nodes.encode.max() == pytest.approx(on_host.encode.max())
    assert on_nodes.cores.max() == pytest.approx(on_host.cores.max())
