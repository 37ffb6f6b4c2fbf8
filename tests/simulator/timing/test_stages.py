"""Stage times against arithmetic by hand, and the scaling study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.machine.record import Serialize
from deeppart_simulator.timing.stages import (
    TORCH_SAVE,
    Protection,
    Times,
    finish_times,
    times_of,
    torch_save_words,
)
from deeppart_simulator.workload.states import read_state
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.timing.jobs import MACHINE, STATE, job

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


def test_the_file_system_limits_all_nodes_together() -> None:
    machine = replace(MACHINE, persistent=replace(MACHINE.persistent, write=2e9))
    assert times_of(job(machine=machine), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(8.0)
    busy = replace(machine, persistent=replace(machine.persistent, others=0.5))
    assert times_of(job(machine=busy), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(16.0)


def test_auto_encodes_where_that_pays() -> None:
    shares = STATE.shares(16, kappa=0)
    assert times_of(job(compression="auto"), shares).stages()["encode"] > 0
    fast = replace(MACHINE, local=replace(MACHINE.local, write=100e9, rank_write=50e9))
    no_flush = Protection(persistent=False)
    assert times_of(job(compression="auto", machine=fast, protection=no_flush), shares).stages()["encode"] == 0


def test_a_lazy_call_plans_and_guards_what_is_copied_later() -> None:
    """A rank has 4 tensors of 250 MB."""
    machine = replace(MACHINE, memory=replace(MACHINE.memory, call=1e-3, leaf=1e-6, defer=10e-6))
    times = times_of(job(capture="lazy", machine=machine), STATE.shares(16, kappa=0))
    assert times.blocked_s == pytest.approx(1e-3 + 64e-6 + 4 * 10e-6)
    assert times.complete()["local"] == pytest.approx(2.2 + times.blocked_s)
    begun = replace(machine, memory=replace(machine.memory, defer_call=0.5e-3))
    as_such_s = times_of(job(capture="lazy", machine=begun), STATE.shares(16, kappa=0)).blocked_s - times.blocked_s
    assert as_such_s == pytest.approx(0.5e-3)
    crowded = job(capture="lazy", machine=replace(machine, cores=2))
    assert times_of(crowded, STATE.shares(16, kappa=0)).blocked_s == pytest.approx(2 * times.blocked_s)


def test_parity_moves_encodes_and_stores() -> None:
    """Groups of 4 of which 1 may be lost: a node stores a third of its 4 GB, and sends all of it: it encodes none."""
    this = job(protection=Protection(partner=False, parity_group=4))
    parity = times_of(this, STATE.shares(16, kappa=0)).stages()["parity"]
    assert parity == pytest.approx(4e9 / 3 / 2e9, rel=0.01)  # storing takes longest
    quick = replace(MACHINE, local=replace(MACHINE.local, write=1e12, rank_write=1e12))
    sent = times_of(replace(this, machine=quick), STATE.shares(16, kappa=0)).stages()["parity"]
    assert sent == pytest.approx(max(4e9 / 10e9, 1e9 / 2e9), rel=0.01)
    slow_network = replace(quick, network=replace(MACHINE.network, bandwidth=1e9, exchange=0.5))
    moved = times_of(replace(this, machine=slow_network), STATE.shares(16, kappa=0)).stages()["parity"]
    assert moved == pytest.approx(4 + 0.5, rel=0.01)


# --- torch.save -------------------------------------------------------------------------------------------------------


def test_rank0_blocks_until_its_one_stream_is_written() -> None:
    """16 GB: copied at 2 GB/s, then serialized at 1, with 1 ms for each of 64 tensors; written at 1 GB/s meanwhile."""
    machine = replace(MACHINE, serialize=Serialize(copy=2e9, node_copy=20e9, stream=1e9, tensor=1e-3))
    shares = STATE.shares(16, "rank0", 0)
    times = times_of(job(strategy="rank0", machine=machine), shares)
    assert times.blocked_s == times.serial_s() == pytest.approx(16 / 2 + 16 / 1 + 0.064)
    assert times.complete() == times.complete(overlapped=False) == {"persistent": times.blocked_s}
    assert times.files == 1 and times.encoded.tolist() == [16e9] + [0.0] * 15
    stages = times.stages()
    assert stages["local"] == stages["partner"] == stages["encode"] == 0  # it goes to the file system only


# --- files on the file system -----------------------------------------------------------------------------------------


#: A rank's 1 GB takes this long to encode on one core at 1 GB/s, with digests of it before and after.
ENCODE_S = 1 + 1.8 / 16
EVERYWHERE = Protection()
#: Writing does not hold anything up, but takes a second of a core for each GB at each level. At the first one digests
#: are in that, of raw chunks; of those that are encoded, the threads take them that encode.
WRITE_S, FLUSH_S = 0.8 * (1 - 1 / 16), 0.8
QUICK = replace(
    MACHINE,
    encode_threads=1,
    local=replace(MACHINE.local, write=1e12, rank_write=1e12, work=1e9),
    persistent=replace(MACHINE.persistent, write=1e13, node_write=1e12, work=1e9),
)


def times(cores: int, compression: str = "tensor", protection: Protection = EVERYWHERE) -> Times:
    this = job(machine=replace(QUICK, cores=cores), compression=compression)
    return times_of(replace(this, protection=protection), STATE.shares(16, kappa=0))


def test_what_four_ranks_do_on_two_cores_takes_its_sum() -> None:
    """Encoding, writing and reading back are done at the same time only as far as there are cores for it."""
    found = times(2)
    work_s = 4 * (ENCODE_S + WRITE_S + FLUSH_S) / 2
    assert found.encode.max() == pytest.approx(2 * ENCODE_S)  # half a core each
    assert found.complete()["local"] - found.blocked_s == pytest.approx(work_s, rel=1e-3)
    assert found.complete()["persistent"] - found.blocked_s == pytest.approx(work_s, rel=1e-3)


def test_copies_parity_and_the_flush_share_the_limit_of_the_job() -> None:
    """A node's 4 GB twice at 0.5 GB/s: 16 s for both, as the library has one limit for all that leaves a node, less a
    tenth that passes at once; a call without a flush is done with its copies after 2 s on the node and 8 s for them.
    """
    shares = STATE.shares(16, kappa=0)
    both = times_of(job(flush_bandwidth=0.5e9), shares)
    assert both.complete() == pytest.approx({"local": 2.2, "partner": 16.1, "persistent": 16.1})
    assert both.complete(flushed=False) == pytest.approx({"local": 2.2, "partner": 10.1, "persistent": 16.1})
    assert both.complete(overlapped=False) == pytest.approx({"local": 2.2, "partner": 10.1, "persistent": 18.0})
    parity = times_of(job(flush_bandwidth=0.5e9, protection=Protection(partner=False, parity_group=4)), shares)
    assert parity.complete() == pytest.approx({"local": 2.2, "parity": 16.1, "persistent": 16.1})
    for protection, last_s in ((Protection(partner=False), 8.1), (Protection(persistent=False), 10.1)):
        alone = times_of(job(flush_bandwidth=0.5e9, protection=protection), shares)
        assert max(alone.complete().values()) == pytest.approx(last_s) and not alone.limited
    assert not times_of(job(), shares).limited


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
    st.lists(st.one_of(st.just(0.0), st.floats(1, 1e6)), min_size=1, max_size=6), st.floats(1, 1e4), st.floats(1, 1e4)
)
def test_shared_bandwidth_is_what_a_simulation_of_it_gives(amounts: list[float], each: float, together: float) -> None:
    found = finish_times(np.array([amounts]), each, together)[0]
    assert found == pytest.approx(_simulated(amounts, each, together), rel=1e-6)


def test_where_ranks_hold_parts_one_saves_each_of_them() -> None:
    """The simulated bytes say so: rank 0 has all of a replicated state, and one of eight parts of a sharded one."""
    for layout, words, share in (("", "on rank 0", 1.0), ("@fsdp", "one rank for each part", 1 / 8)):
        state = read_state(f"gpt2{layout}")
        assert words in torch_save_words(state.layout)
        assert int(state.shares(8, TORCH_SAVE).nbytes[0]) == pytest.approx(share * state.nbytes, rel=0.01)
