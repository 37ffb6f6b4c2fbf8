"""Stage times against arithmetic by hand, and the scaling study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.machine.record import Serialize
from deeppart_simulator.timing.stages import (
    SMALL_LEAF_BYTES,
    STAGES,
    TORCH_SAVE,
    Protection,
    Times,
    finish_times,
    streams_s,
    times_of,
    torch_save_words,
)
from deeppart_simulator.workload.states import read_state
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import ConfigError
from deeppart.plan.redundancy import Stripes
from deeppart.state import fingerprint
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


def test_a_flush_that_keeps_up_is_committed_some_time_after_the_parts_are_on_the_nodes() -> None:
    """On the nodes after 2.2 s; on the file system after 4.2 s, or half a second later if that is fast."""
    fast = replace(MACHINE.persistent, write=1e12, node_write=1e11, commit=0.5)
    slow = replace(MACHINE.persistent, commit=0.5)
    alone = Protection(partner=False)
    for persistent, complete_s in ((fast, 2.7), (slow, 4.2)):
        this = job(machine=replace(MACHINE, persistent=persistent), protection=alone)
        times = times_of(this, STATE.shares(16, kappa=0))
        assert times.complete() == pytest.approx({"local": 2.2, "persistent": complete_s})
        assert times.complete(overlapped=False)["persistent"] >= complete_s, "one after the other is no quicker"


def test_copies_take_as_long_as_the_rank_that_has_most_of_them() -> None:
    """1 GB of each rank, of which it sends and stores 0.4 a second."""
    slow = replace(MACHINE, network=replace(MACHINE.network, copies=0.4e9))
    assert times_of(job(machine=slow), STATE.shares(16, kappa=0)).stages()["partner"] == pytest.approx(2.5)
    crowded = replace(slow, cores=2)  # for four ranks
    assert times_of(job(machine=crowded), STATE.shares(16, kappa=0)).stages()["partner"] == pytest.approx(5.0)


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
    """4 GB of a node; a tenth of a second's worth passes at once."""
    assert times_of(job(flush_bandwidth=0.5e9), STATE.shares(16, kappa=0)).stages()["persistent"] == pytest.approx(7.9)


def test_each_rank_has_its_part_of_the_limit() -> None:
    """One rank of a node has all bytes, and goes on as if the others used theirs."""
    state = read_state("tensors-1x1GiB")
    times = times_of(job(state=state, ranks=4, flush_bandwidth=1e9), state.shares(4, "whole", kappa=0))
    assert times.stages()["persistent"] == pytest.approx(4 * 2**30 / 1e9 - 0.1)


def test_encoding_takes_time_and_saves_bytes() -> None:
    times = times_of(job(compression="tensor"), STATE.shares(16, kappa=0))
    stages = times.stages()
    assert stages["encode"] == pytest.approx(0.5 + 1.8 * 0.5 / 16)  # two threads; digests before and after, 16 GB/s
    assert stages["local"] == pytest.approx(1.6)
    assert float(times.encoded.sum()) == pytest.approx(0.8 * STATE.nbytes)


def test_auto_encodes_where_that_pays() -> None:
    shares = STATE.shares(16, kappa=0)
    assert times_of(job(compression="auto"), shares).stages()["encode"] > 0
    fast = replace(MACHINE, local=replace(MACHINE.local, write=100e9, rank_write=50e9))
    no_flush = Protection(persistent=False)
    assert times_of(job(compression="auto", machine=fast, protection=no_flush), shares).stages()["encode"] == 0


def test_large_leaves_are_compared_one_by_one_where_there_are_other_ranks() -> None:
    """64 leaves of 250 MB, and as many of 16 KiB."""
    machine = replace(MACHINE, memory=replace(MACHINE.memory, compare=1e-6, compare_large=5e-6))
    assert times_of(job(machine=machine), STATE.shares(16, kappa=0)).plan == pytest.approx(64 * 6e-6, abs=1e-6)
    small = job(machine=machine, state=read_state("tensors-64x16KiB"))
    assert times_of(small, small.shares()).plan == pytest.approx(64 * 1e-6, abs=1e-6)
    alone = job(machine=machine, ranks=1, ranks_per_node=1)
    assert times_of(alone, alone.shares()).plan == 0.0


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


def test_copies_in_the_background_may_take_longer() -> None:
    machine = replace(MACHINE, memory=replace(MACHINE.memory, late=0.5))
    shares = STATE.shares(16, kappa=0)
    lazy, late = (times_of(job(capture="lazy", machine=this), shares) for this in (MACHINE, machine))
    copied_s = float(times_of(job(), shares).capture.max())
    assert late.complete()["local"] == pytest.approx(lazy.complete()["local"] + copied_s, rel=1e-3)
    assert late.blocked_s == lazy.blocked_s
    each = times_of(
        job(capture="lazy", machine=replace(machine, memory=replace(machine.memory, late_tensor=0.1))), shares
    )
    assert each.complete()["local"] == pytest.approx(late.complete()["local"] + 4 * 0.1), "a rank has 4 tensors"
    assert times_of(job(machine=machine), shares).complete() == times_of(job(), shares).complete(), "eager ones do not"


def test_a_lazy_call_copies_small_tensors_itself() -> None:
    machine = replace(
        MACHINE, memory=replace(MACHINE.memory, call=0.0, leaf=0.0, tensor=1e-6, defer_call=1.0, defer=1.0)
    )
    state = read_state("tensors-6400x64KiB")
    lazy, eager = (
        times_of(this, state.shares(16, kappa=0))
        for this in (job(state=state, machine=machine, capture=how) for how in ("lazy", "eager"))
    )
    assert lazy.blocked_s == pytest.approx(eager.blocked_s), "nothing is put off"
    assert lazy.complete() == pytest.approx(eager.complete()), "and what has been copied is not copied again"
    assert SMALL_LEAF_BYTES == fingerprint.SMALL_LEAF_BYTES  # as the library does it


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


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_no_member_of_a_parity_group_encodes_blocks_of_its_own(members: int) -> None:
    """As the library deals out the stripes: what the time of moving them is made of."""
    for tolerate in range(1, members):
        stripes = Stripes(members, tolerate, 1 << 20, 1 << 30)
        blocks = [(place, i) for place in range(members) for i in range(stripes.data_blocks)]
        assert all(stripes.stripe_of(place, i) != place for place, i in blocks)


def test_one_node_has_no_partner_and_no_group() -> None:
    assert times_of(job(ranks=4), STATE.shares(4, kappa=0)).stages()["partner"] == 0
    with pytest.raises(ConfigError, match="fewer nodes than a parity group"):
        times_of(job(ranks=4, protection=Protection(parity_group=4)), STATE.shares(4, kappa=0))


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


def test_rank0_waits_for_a_slow_file_system() -> None:
    slow = replace(MACHINE, persistent=replace(MACHINE.persistent, rank_write=0.5e9, file=0.25))
    shares = STATE.shares(16, "rank0", 0)
    assert times_of(job(strategy="rank0", machine=slow), shares).blocked_s == pytest.approx(32.25)
    limited = job(strategy="rank0", machine=slow, flush_bandwidth=1e6, compression="tensor")
    assert times_of(limited, shares).blocked_s == pytest.approx(32.25)  # torch.save knows none of these


def test_rank0_takes_the_nodes_storage_without_a_persistent_level() -> None:
    shares = STATE.shares(16, "rank0", 0)
    times = times_of(job(strategy="rank0", protection=Protection(persistent=False)), shares)
    assert times.complete() == pytest.approx({"local": 16.0}) and times.files == 0


def test_the_ranks_meet_at_the_end_of_torch_save() -> None:
    far = replace(MACHINE, network=replace(MACHINE.network, latency=1.0))
    shares = STATE.shares(16, "rank0", 0)
    assert times_of(job(strategy="rank0", machine=far), shares).blocked_s == pytest.approx(16 + 2 * 4)
    alone = times_of(job(ranks=1, strategy="rank0", machine=far), STATE.shares(1, "rank0", 0))
    assert alone.blocked_s == pytest.approx(16)


# --- files on the file system -----------------------------------------------------------------------------------------


def test_a_file_for_each_rank() -> None:
    """16 ranks at 10 files a second: 1.6 s; a file takes 0.5 s."""
    machine = replace(MACHINE, persistent=replace(MACHINE.persistent, files=10.0, file=0.5))
    times = times_of(job(machine=machine), STATE.shares(16, kappa=0))
    assert times.files == 16
    assert times.stages()["persistent"] == pytest.approx(4.0 + 0.5 + 1.6)


def test_one_rank_that_has_all_writes_one_file() -> None:
    this = job(strategy="rank0")
    assert times_of(this, STATE.shares(16, "rank0", 0)).files == 1
    assert times_of(replace(this, protection=Protection(persistent=False)), STATE.shares(16, "rank0", 0)).files == 0


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


def test_what_has_cores_of_its_own_takes_the_longest_of_it() -> None:
    found = times(64)
    assert found.complete()["local"] - found.blocked_s == pytest.approx(ENCODE_S, rel=0.01)
    assert found.complete()["persistent"] - found.blocked_s == pytest.approx(ENCODE_S, rel=0.01)


def test_without_a_level_nobody_works_for_it() -> None:
    found = times(2, protection=Protection(partner=False, persistent=False))
    assert found.complete()["local"] - found.blocked_s == pytest.approx(4 * (ENCODE_S + WRITE_S) / 2, rel=0.01)
    found = times(2, protection=Protection(local=False, partner=False))
    assert found.complete() == pytest.approx({"persistent": found.blocked_s + 4 * (ENCODE_S + FLUSH_S) / 2}, rel=0.01)


def test_raw_chunks_are_written_at_the_rates_that_were_measured() -> None:
    """With as many ranks on the node: they contain what the ranks took from each other."""
    found = times(1, "none")
    assert not found.cores.any()
    assert found.complete()["local"] - found.blocked_s == pytest.approx(4e9 / 1e12)


def test_the_end_of_a_file_follows_its_last_chunk() -> None:
    """However long encoding took: tables, sync, rename and the round in which ranks agree."""
    slow = replace(QUICK, local=replace(QUICK.local, file=0.5), persistent=replace(QUICK.persistent, file=0.25))
    this = job(machine=slow, compression="tensor")
    found = times_of(this, STATE.shares(16, kappa=0))
    assert found.complete()["local"] - found.blocked_s == pytest.approx(ENCODE_S + 0.5, rel=0.01)
    only_there = times_of(replace(this, protection=Protection(local=False)), STATE.shares(16, kappa=0))
    assert only_there.complete()["persistent"] - only_there.blocked_s == pytest.approx(ENCODE_S + 0.25, rel=0.01)


def test_one_after_the_other_everything_is_added_up() -> None:
    found = times(64)
    stages = found.stages()
    assert set(stages) == set(STAGES)
    assert found.complete(overlapped=False)["local"] == pytest.approx(sum(stages[name] for name in STAGES[:4]))


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


#: Two ranks on each of two nodes; the last has nothing.
NBYTES = np.array([[4e9, 4e9], [4e9, 0.0]])
TENSORS = np.array([[100.0, 100.0], [100.0, 0.0]])


def test_a_stream_does_one_thing_after_another() -> None:
    machine = replace(MACHINE, serialize=Serialize(copy=2e9, node_copy=3e9, stream=1e9, tensor=0.01))
    assert streams_s(machine, NBYTES, TENSORS) == pytest.approx(np.array([[8 / 3 + 5, 8 / 3 + 5], [7.0, 0.0]]))


def test_streams_share_cores_but_one_alone_has_its_own() -> None:
    machine = replace(MACHINE, cores=1, serialize=Serialize(stream=1e9, tensor=0.0))
    assert streams_s(machine, NBYTES, TENSORS).tolist() == [[8.0, 8.0], [4.0, 0.0]]


def test_where_ranks_hold_parts_one_saves_each_of_them() -> None:
    """The simulated bytes say so: rank 0 has all of a replicated state, and one of eight parts of a sharded one."""
    for layout, words, share in (("", "on rank 0", 1.0), ("@fsdp", "one rank for each part", 1 / 8)):
        state = read_state(f"gpt2{layout}")
        assert words in torch_save_words(state.layout)
        assert int(state.shares(8, TORCH_SAVE).nbytes[0]) == pytest.approx(share * state.nbytes, rel=0.01)
