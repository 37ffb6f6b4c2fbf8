"""Stage times against arithmetic by hand, and the scaling study."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent
from deeppart_simulator.timing.restores import distribute_s, restore_s
from deeppart_simulator.timing.scale import study
from deeppart_simulator.timing.sharing import by_node, finish_times
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.timing.timeline import timeline
from deeppart_simulator.workload.states import read_state
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import ConfigError

MACHINE = Machine(
    name="round numbers",
    nodes=64,
    ranks_per_node=4,
    encode_threads=2,
    memory=Memory(copy=10e9, node_copy=20e9, tensor=0.0, call=0.0, leaf=0.0, compare=0.0),
    local=Local(write=2e9, read=4e9, rank_write=1e9, rank_read=4e9, file=0.0, tensor=0.0),
    network=Network(bandwidth=10e9, latency=0.0, parity=2e9),
    persistent=Persistent(
        write=8e9, read=8e9, node_write=1e9, node_read=1e9, file=0.0, tensor=0.0, leaf=0.0, files=1e12
    ),
    codecs={"float32": Codec(ratio=0.8, encode=1e9, decode=1e9)},
)
STATE = read_state("tensors-64x250MB")  # 16 GB


def job(ranks: int = 16, **changes: object) -> Job:
    return replace(Job(STATE, MACHINE, ranks, 4), **changes)  # type: ignore[arg-type]


# --- sharing ----------------------------------------------------------------------------------------------------------


def _simulated(amounts: list[float], each: float, together: float) -> list[float]:
    """The same by tiny steps of what is left."""
    left, done, now = list(amounts), [0.0] * len(amounts), 0.0
    while any(rest > 0 for rest in left):
        active = [place for place, rest in enumerate(left) if rest > 0]
        rate = min(each, together / len(active))
        step = min(left[place] for place in active) / rate
        now += step
        for place in active:
            left[place] = left[place] - rate * step if left[place] > rate * step * (1 + 1e-12) else 0.0
            if not left[place]:
                done[place] = now
    return done


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1, 1e6)), min_size=1, max_size=6),
    st.floats(1, 1e4),
    st.floats(1, 1e4),
)
def test_shared_bandwidth_is_what_a_simulation_of_it_gives(amounts: list[float], each: float, together: float) -> None:
    found = finish_times(np.array([amounts]), each, together)[0]
    assert found == pytest.approx(_simulated(amounts, each, together), rel=1e-6)


def test_rows_do_not_touch_each_other() -> None:
    found = finish_times(np.array([[10.0, 0.0], [10.0, 10.0]]), 10.0, 10.0)
    assert found.tolist() == [[1.0, 0.0], [2.0, 2.0]]
    assert by_node(np.arange(5), 2).tolist() == [[0, 1], [2, 3], [4, 0]]


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def test_stages_by_hand() -> None:
    """1 GB a rank, four ranks a node: copied at 5 GB/s each, written at 0.5, sent at 10 GB/s a node, flushed at 1."""
    this = job()
    shares = STATE.shares(16, kappa=0)
    assert shares.nbytes.tolist() == [10**9] * 16
    stages = times_of(this, shares).stages()
    assert stages["capture"] == pytest.approx(0.2)
    assert stages["encode"] == 0
    assert stages["local"] == pytest.approx(2.0)
    assert stages["partner"] == pytest.approx(2.0)  # storing 4 GB takes longer than receiving them
    assert stages["persistent"] == pytest.approx(4.0)


def test_levels_follow_each_other() -> None:
    times = times_of(job(), STATE.shares(16, kappa=0))
    assert times.blocked_s == pytest.approx(0.2)
    assert times.complete() == pytest.approx({"local": 2.2, "partner": 4.2, "persistent": 4.2})
    assert times.complete(overlapped=False) == pytest.approx({"local": 2.2, "partner": 4.2, "persistent": 8.2})
    assert times.serial_s() == pytest.approx(8.2)


def test_the_file_system_limits_all_nodes_together() -> None:
    machine = replace(MACHINE, persistent=replace(MACHINE.persistent, write=2e9))
    assert times_of(job(machine=machine), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(8.0)
    busy = replace(machine, persistent=replace(machine.persistent, others=0.5))
    assert times_of(job(machine=busy), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(16.0)


def test_flush_bandwidth_is_a_limit_per_node() -> None:
    assert times_of(job(flush_bandwidth=0.5e9), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(8.0)


def test_encoding_takes_time_and_saves_bytes() -> None:
    times = times_of(job(compression="tensor"), STATE.shares(16, kappa=0))
    stages = times.stages()
    assert stages["encode"] == pytest.approx(0.5 + 0.5 / 16)  # two threads, digests at 16 GB/s each
    assert stages["local"] == pytest.approx(1.6)
    assert float(times.encoded.sum()) == pytest.approx(0.8 * STATE.nbytes)


def test_auto_encodes_where_that_pays() -> None:
    shares = STATE.shares(16, kappa=0)
    assert times_of(job(compression="auto"), shares).stages()["encode"] > 0
    fast = replace(MACHINE, local=replace(MACHINE.local, write=100e9, rank_write=50e9))
    no_flush = Protection(persistent=False)
    assert times_of(job(compression="auto", machine=fast, protection=no_flush), shares).stages()["encode"] == 0


def test_lazy_capture_blocks_for_planning_only() -> None:
    machine = replace(MACHINE, memory=replace(MACHINE.memory, call=1e-3, leaf=1e-6))
    times = times_of(job(capture="lazy", machine=machine), STATE.shares(16, kappa=0))
    assert times.blocked_s == pytest.approx(1e-3 + 64e-6)
    assert times.complete()["local"] == pytest.approx(2.2 + 1e-3 + 64e-6)


def test_parity_moves_encodes_and_stores() -> None:
    """Groups of 4 of which 1 may be lost: a node stores a third of its 4 GB, and sends three quarters of it."""
    this = job(protection=Protection(partner=False, parity_group=4))
    parity = times_of(this, STATE.shares(16, kappa=0)).stages()["parity"]
    assert parity == pytest.approx(4e9 / 3 / 2e9, rel=0.01)  # storing takes longest
    quick = replace(MACHINE, local=replace(MACHINE.local, write=1e12, rank_write=1e12))
    sent = times_of(replace(this, machine=quick), STATE.shares(16, kappa=0)).stages()["parity"]
    assert sent == pytest.approx(max(4e9 * 0.75 / 10e9, 1e9 / 2e9), rel=0.01)


def test_one_node_has_no_partner_and_no_group() -> None:
    assert times_of(job(ranks=4), STATE.shares(4, kappa=0)).stages()["partner"] == 0
    with pytest.raises(ConfigError, match="fewer nodes than a parity group"):
        times_of(job(ranks=4, protection=Protection(parity_group=4)), STATE.shares(4, kappa=0))
    with pytest.raises(ConfigError, match="fewer nodes than the job"):
        times_of(job(ranks=1024), STATE.shares(1024, kappa=0))


def test_rank0_leaves_everything_to_one() -> None:
    times = times_of(job(strategy="rank0"), STATE.shares(16, "rank0", 0))
    stages = times.stages()
    assert stages["capture"] == pytest.approx(1.6) and stages["local"] == pytest.approx(16.0)
    assert stages["persistent"] == pytest.approx(16.0)


# --- coming back ------------------------------------------------------------------------------------------------------


def test_restores_by_hand() -> None:
    """Each node has 4 GB of its own; every rank needs all 16 GB, copied at 5 GB/s while four copy."""
    this, shares = job(), STATE.shares(16, kappa=0)
    assert distribute_s(this) == pytest.approx(16 / 5)
    assert restore_s(this, shares, {"local": 4}) == pytest.approx(1 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "partner": 1}) == pytest.approx(2 + 16 / 5)
    assert restore_s(this, shares, {"persistent": 4}) == pytest.approx(4 + 16 / 5)
    assert restore_s(this, shares, {"local": 3, "persistent": 1}) == pytest.approx(4 + 16 / 5)


def test_sharded_states_have_nothing_to_hand_round() -> None:
    state = read_state("tensors-64x250MB@fsdp")
    assert distribute_s(job(state=state)) == pytest.approx(1 / 5)


# --- the study --------------------------------------------------------------------------------------------------------


def test_a_study_has_all_combinations() -> None:
    points = study(job(), [16, 1, 4], ["deeppart", "rank0"], ["none", "tensor"])
    assert [(p.ranks, p.strategy, p.compression) for p in points] == [
        (ranks, strategy, compression)
        for ranks in (1, 4, 16)
        for strategy in ("deeppart", "rank0")
        for compression in ("none", "tensor")
    ]
    assert all(
        point.serial_speedup == pytest.approx(1)
        for point in points
        if point.strategy == "rank0" and point.compression == "none"
    )
    assert points[0].serial_efficiency == pytest.approx(1)
    many = points[-4]
    assert many.blocked_speedup == pytest.approx(1.6 / 0.2, rel=1e-3)
    assert 1 <= many.imbalance < 1.02


def test_efficiency_is_told_only_where_one_rank_can_hold_it() -> None:
    points = study(job(state=read_state("tensors-64x250MB@tp=4")), [4, 8], ["deeppart"], ["none"])
    assert [point.serial_efficiency for point in points] == [None, None]


@pytest.mark.parametrize(("strategies", "compressions"), [(["best"], ["none"]), (["deeppart"], ["lz4"])])
def test_unknown_names_are_refused(strategies: list[str], compressions: list[str]) -> None:
    with pytest.raises(ConfigError, match="not known"):
        study(job(), [1], strategies, compressions)


def test_a_timeline_is_the_checkpoint() -> None:
    this = job(compression="tensor", protection=Protection(parity_group=4))
    times = times_of(this, STATE.shares(16, kappa=0))
    bars = timeline(this, times)
    assert {bar.node for bar in bars} == set(range(4))
    done = times.complete()
    assert max(bar.end_s for bar in bars if bar.what == "write") == pytest.approx(done["local"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange copies") == pytest.approx(done["partner"])
    assert max(bar.end_s for bar in bars if bar.what == "exchange parity") == pytest.approx(done["parity"])
    assert max(bar.end_s for bar in bars if bar.what == "flush") == pytest.approx(done["persistent"])
    assert math.isclose(max(bar.end_s for bar in bars if bar.what == "copy"), times.blocked_s)
