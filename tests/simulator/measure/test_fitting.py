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
    fit,
    fit_planning,
    late_copies,
)
from deeppart_simulator.timing.restores import restore_s
from deeppart_simulator.timing.stages import Job, Protection, times_of
from deeppart_simulator.workload.states import read_state


def test_a_fit_of_noise_leaves_no_infinite_rate() -> None:
    """As on a machine where something else ran while the small shares were measured."""
    times = {1 << 20: 0.5, 1 << 24: 0.3, 1 << 27: 0.1}
    samples = [Sample(1, nbytes, 16, {"capture": seconds}) for nbytes, seconds in times.items()]
    constant, per_byte, per_tensor = fit(samples, "capture")
    assert per_byte == pytest.approx(0.1 / (1 << 27))
    assert constant >= 0 and per_tensor >= 0 and math.isfinite(constant + per_tensor)


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


SHARES = ((160_000_000, 500), (160_000_000, 20))


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
