"""Constants and slopes from measured checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import pytest
from deeppart_simulator.machine.record import Codec, Local, Machine, Memory, Network, Persistent
from deeppart_simulator.measure.fitting import (
    Encoded,
    Sample,
    as_encoded,
    fit,
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


def test_what_cannot_be_is_bounded() -> None:
    it = machine(LOOP, 2)
    slow = as_encoded(it, Encoded(1, RAW, TENSORS, 1000.0, 1000.0)).codecs["float32"]
    fast = as_encoded(it, Encoded(1, RAW, TENSORS, 0.001, -1.0)).codecs["float32"]
    assert (slow.encode, slow.decode) == pytest.approx((LOOP["float32"].encode / 4, LOOP["float32"].decode / 4))
    assert (fast.encode, fast.decode) == (2 * LOOP["float32"].encode, 2 * LOOP["float32"].decode)
