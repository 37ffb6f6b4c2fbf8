"""Constants and slopes from measured checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent
from deeppart_simulator.measure.fitting import (
    Encoded,
    Sample,
    as_encoded,
    between_ranks,
    bytes_and_tensors,
    bytes_beside,
    fit,
    fit_planning,
    guards_s,
    late_copies,
)
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.states import read_state

from tests.simulator.measure.samples import samples_of


def test_a_fit_finds_what_was_put_in() -> None:
    constant, per_byte, per_tensor = fit(samples_of(1), "capture")
    assert constant == pytest.approx(0.0, abs=1e-9)
    assert (1 / per_byte, per_tensor) == pytest.approx((10e9, 4e-6))


def test_a_fit_of_noise_leaves_no_infinite_rate() -> None:
    """As on a machine where something else ran while the small shares were measured."""
    times = {1 << 20: 0.5, 1 << 24: 0.3, 1 << 27: 0.1}
    samples = [Sample(1, nbytes, 16, {"capture": seconds}) for nbytes, seconds in times.items()]
    constant, per_byte, per_tensor = fit(samples, "capture")
    assert per_byte == pytest.approx(0.1 / (1 << 27))
    assert constant >= 0 and per_tensor >= 0 and math.isfinite(constant + per_tensor)


def test_planning_is_fitted_by_what_the_model_has_of_it() -> None:
    """A part that the model has no term for would be lost: here a millisecond for each 64 MiB."""
    samples = [
        Sample(2, nbytes, tensors, {"plan": 5e-3 + 2e-6 * tensors + 1e-3 * nbytes / (64 << 20)})
        for nbytes, tensors in ((64 << 20, 16), (128 << 20, 64), (96 << 20, 512), (64 << 20, 4096), (128 << 20, 8192))
    ]
    constant, per_tensor, _ = fit_planning(samples)
    assert per_tensor == pytest.approx(2e-6, rel=0.1)
    assert 6e-3 < constant < 7e-3


def test_planning_of_large_tensors_has_a_part_of_its_own() -> None:
    """They are digested one by one, in every call some of them: 8 us instead of 3."""
    shares = ((64 << 20, 16), (128 << 20, 512), (16 << 20, 256), (32 << 20, 4096), (64 << 20, 12288))
    samples = [
        Sample(4, nbytes, tensors, {"plan": 5e-3 + (8e-6 if nbytes > tensors << 16 else 3e-6) * tensors})
        for nbytes, tensors in shares
    ]
    assert fit_planning(samples) == pytest.approx((5e-3, 3e-6, 5e-6))


def test_planning_of_one_rank_has_no_part_that_the_model_has_not() -> None:
    """It compares nothing: what its large tensors take more would be in no prediction."""
    shares = ((64 << 20, 16), (128 << 20, 64), (160 << 20, 512), (32 << 20, 4096), (64 << 20, 12288))
    samples = [
        Sample(1, nbytes, tensors, {"plan": 1e-3 + (5e-6 if nbytes > tensors << 16 else 3e-6) * tensors})
        for nbytes, tensors in shares
    ]
    constant, per_tensor, per_large = fit_planning(samples)
    assert per_large == 0.0
    errors = [(constant + per_tensor * each.share_tensors) / each.seconds["plan"] - 1 for each in samples]
    assert max(errors) > 0 > min(errors), "some too long, some too short"


def test_bytes_are_fitted_beside_what_is_known() -> None:
    samples = [Sample(1, nbytes, 16, {"restore": 0.03 + nbytes / 2e9}) for nbytes in (64 << 20, 128 << 20)]
    assert 1 / bytes_beside(samples, "restore", [0.03, 0.03]) == pytest.approx(2e9)
    # What is known explains more than all: they take no less than a quarter of it.
    assert bytes_beside(samples, "restore", [1.0, 1.0]) == samples[1].seconds["restore"] / (128 << 20) / 4


def test_without_a_constant_two_samples_tell_bytes_from_tensors() -> None:
    samples = [Sample(1, 160 << 20, count, {"copy": (160 << 20) / 4e9 + 16e-6 * count}) for count in (512, 32)]
    assert bytes_and_tensors(samples, "copy") == pytest.approx((1 / 4e9, 16e-6))


SHARES = ((160_000_000, 500), (160_000_000, 20))


@pytest.mark.parametrize(("as_such_s", "tensor_s"), [(0.5e-3, 20e-6), (0.0, 5e-6), (1e-3, 1e-9)])
def test_a_lazy_call_is_taken_apart_as_the_model_puts_it_together(as_such_s: float, tensor_s: float) -> None:
    """Planning and what a copy takes as such are terms of their own: what is left are guards."""
    samples = [
        Sample(2, nbytes, tensors, {"plan": 4e-3 + 3e-6 * tensors, "capture": 1e-3 + nbytes / 4e9})
        for nbytes, tensors in ((64 << 20, 16), (128 << 20, 64), (64 << 20, 4096))
    ]
    blocked_s = [4e-3 + 3e-6 * tensors + 1e-3 + as_such_s + tensors * tensor_s for _, tensors in SHARES]
    found = guards_s([{"blocked": [each]} for each in blocked_s], samples, SHARES)
    assert found == pytest.approx((as_such_s, tensor_s), rel=1e-3, abs=1e-9)
    slow_s = max(blocked_s) + 1e-3  # the call with few tensors had to wait
    found = guards_s([{"blocked": [max(blocked_s)]}, {"blocked": [slow_s]}], samples, SHARES)
    assert found == pytest.approx((0.0, as_such_s / 500 + tensor_s)), "no tensor would be guarded for nothing"
    found = guards_s([{"blocked": [max(blocked_s)]}, {"blocked": [1e-3]}], samples, SHARES)
    assert found == pytest.approx((0.0, as_such_s / 500 + tensor_s)), "less than planning takes: nothing is known of it"
    assert guards_s([{"blocked": [1e-3]}] * 2, samples, SHARES) == pytest.approx((0.0, 0.0), abs=1e-8)


@pytest.mark.parametrize(("rate", "tensor_s"), [(0.5, 0.0), (1.0, 0.0), (0.5, 16e-6), (0.25, 1e-6)])
def test_copies_in_the_background_are_found_again(rate: float, tensor_s: float) -> None:
    """160 MB are copied eagerly in 40 ms, and 2 us a tensor; until they are on the node it takes 82 ms, and 1 us."""
    late = [_lazy(0.04 / rate + tensors * (2e-6 + tensor_s), tensors) for _, tensors in SHARES]
    assert late_copies(late, _eager(), SHARES) == pytest.approx((rate, tensor_s), rel=1e-3, abs=1e-8)


@pytest.mark.parametrize(("copied_s", "rate"), [(0.02, 1.0), (-0.1, 1.0), (9.0, 0.1)])
def test_copies_are_no_faster_than_eager_ones_and_no_slower_than_anything_is(copied_s: float, rate: float) -> None:
    late = [_lazy(copied_s + tensors * 2e-6, tensors) for _, tensors in SHARES]
    assert late_copies(late, _eager(), SHARES) == pytest.approx((rate, 0.0), rel=1e-3)


@pytest.mark.parametrize("copied_s", [0.03, 0.0005])
def test_what_bytes_seem_to_take_less_than_in_eager_copies_is_in_no_tensor(copied_s: float) -> None:
    """30 ms instead of 40, and 50 us a tensor: 500 of them are copied in 55 ms, and not in 65."""
    nbytes, tensors = SHARES[0]
    late = [_lazy(copied_s + each * (2e-6 + 50e-6), each) for _, each in SHARES]
    rate, tensor_s = late_copies(late, _eager(), SHARES)
    assert rate == 1.0
    measured_s = copied_s + tensors * 50e-6
    assert nbytes / 4e9 + tensors * tensor_s == pytest.approx(max(measured_s, nbytes / 4e9), rel=0.03)


def _eager() -> list[Sample]:
    return [
        Sample(
            2,
            nbytes,
            tensors,
            {"capture": nbytes / 4e9 + 2e-6 * tensors, "local": 2e-3 + nbytes / 2e9 + 1e-6 * tensors},
        )
        for nbytes, tensors in ((64_000_000, 16), (128_000_000, 64), (64_000_000, 4096))
    ]


def _lazy(copied_s: float, tensors: int) -> dict[str, list[float]]:
    return {"blocked": [0.01], "local": [0.01 + copied_s + 2e-3 + 0.08 + tensors * 1e-6]}


PIECES: dict[str, Any] = {"parity": 2e9, "network": {"bandwidth": 6e9, "latency": 3e-6}}
SHARES_NETWORK = ((64 << 20, 16), (128 << 20, 64))


def samples(partner_s: float | None = None) -> list[Sample]:
    """Copies at 0.5 GB/s beside a file of 2 ms, parity at 0.4 GB/s beside 50 ms, a lost part at 0.25 GB/s."""
    return [
        Sample(
            4,
            nbytes,
            tensors,
            {
                "partner": 2e-3 + nbytes / 0.5e9 if partner_s is None else partner_s,
                "parity": 0.05 + nbytes / 0.4e9,
                "rebuild": 0.048 + nbytes / 0.25e9,
            },
        )
        for nbytes, tensors in SHARES_NETWORK
    ]


@pytest.mark.parametrize("crowding", [1.0, 2.0])
def test_rates_are_those_of_a_rank_with_a_core_of_its_own(crowding: float) -> None:
    found = between_ranks(PIECES, samples(), crowding, 2e-3)
    assert (found.bandwidth, found.latency) == (6e9, 3e-6)
    assert found.copies == pytest.approx(0.5e9 * crowding, rel=1e-3)
    assert found.parity == pytest.approx(0.4e9 * crowding, rel=1e-3)
    assert found.rebuild == pytest.approx(0.25e9 * crowding, rel=1e-3)
    assert found.exchange == pytest.approx(0.048, rel=1e-3)


@pytest.mark.parametrize("partner_s", [0.0, -1e-3])
def test_copies_that_took_no_time_were_not_measured(partner_s: float) -> None:
    assert math.isinf(between_ranks(PIECES, samples(partner_s), 1.0, 2e-3).copies)


RAW, TENSORS = 160 << 20, 256
#: float32 and bfloat16 in a loop, and what they are within a checkpoint.
LOOP = {"float32": Codec(ratio=0.8, encode=1.5e9, decode=1.2e9), "bfloat16": Codec(ratio=0.7, encode=1e9, decode=2e9)}
TRUE = {
    "float32": Codec(ratio=0.8, encode=0.75e9, decode=0.9e9),
    "bfloat16": Codec(ratio=0.7, encode=0.5e9, decode=1.5e9),
}


def machine(codecs: dict[str, Codec], cores: int, write: float = 30e9) -> Machine:
    return Machine(
        name="it", nodes=1, ranks_per_node=4, cores=cores, encode_threads=max(1, min(4, cores - 1)),
        memory=Memory(copy=8e9, node_copy=12e9, restore=3e-3, restored_leaf=1e-6),
        local=Local(write=write, read=4e9, file=2e-3, tensor=1e-6, work=5e9),
        network=Network(bandwidth=1e10),
        persistent=Persistent(write=2e9, read=2e9, node_write=2e9, node_read=2e9, work=4e9),
        codecs=MappingProxyType(codecs),
    )  # fmt: skip


def measured(true: Machine, ranks: int) -> Encoded:
    """As the model has it, of a state in float32."""
    state = read_state(f"tensors-{TENSORS * ranks}x{RAW // TENSORS}")
    job = Job(state, true, ranks, ranks, compression="tensor", protection=Protection(partner=False))
    shares = job.shares()
    times = times_of(job, shares)
    back, raw_back = (restore_s(each, shares, {"local": 1}) for each in (job, replace(job, compression="none")))
    return Encoded(ranks, RAW, TENSORS, times.complete()["local"] - times.blocked_s, back - raw_back)


@pytest.mark.parametrize(("ranks", "cores"), [(1, 2), (4, 2), (4, 64), (2, 3)])
def test_the_model_takes_as_long_as_was_measured(ranks: int, cores: int) -> None:
    """Where the encoding threads are what takes longest, and where the cores are."""
    found = as_encoded(machine(LOOP, cores), measured(machine(TRUE, cores), ranks)).codecs
    for dtype, codec in TRUE.items():
        assert found[dtype].encode == pytest.approx(codec.encode, rel=1e-6), dtype
        assert found[dtype].decode == pytest.approx(codec.decode, rel=1e-6), dtype
        assert found[dtype].ratio == codec.ratio


def test_where_writing_takes_longest_nothing_is_learned_of_encoding() -> None:
    found = as_encoded(machine(LOOP, 64, write=0.2e9), measured(machine(TRUE, 64, write=0.2e9), 4)).codecs
    assert found["float32"].encode == LOOP["float32"].encode


def test_what_cannot_be_is_bounded() -> None:
    it = machine(LOOP, 2)
    slow = as_encoded(it, Encoded(1, RAW, TENSORS, 1000.0, 1000.0)).codecs["float32"]
    fast = as_encoded(it, Encoded(1, RAW, TENSORS, 0.001, -1.0)).codecs["float32"]
    assert (slow.encode, slow.decode) == pytest.approx((LOOP["float32"].encode / 4, LOOP["float32"].decode / 4))
    assert (fast.encode, fast.decode) == (2 * LOOP["float32"].encode, 2 * LOOP["float32"].decode)


def test_the_commit_is_known_by_a_flush_that_kept_up() -> None:
    """Where it had to wait for the file system nothing is learned of it."""
    found = as_encoded(machine(LOOP, 2), replace(measured(machine(TRUE, 2), 1), commit_s=0.012))
    assert found.persistent.commit == 0.012
    slow = machine(TRUE, 2)
    slow = replace(slow, persistent=replace(slow.persistent, write=0.1e9, node_write=0.1e9))
    for took_s in (0.012, 1.2):
        found = as_encoded(slow, replace(measured(slow, 1), commit_s=took_s))
        assert found.persistent.commit == 0.0
    found = as_encoded(machine(LOOP, 2), replace(measured(machine(TRUE, 2), 1), commit_s=10.0))
    assert found.persistent.commit == 3 * found.persistent.file, "something else was slow"
