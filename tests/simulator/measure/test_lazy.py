"""Guards and late copies are found again in lazy checkpoints that were put together from them."""

from __future__ import annotations

import pytest
from deeppart_simulator.measure.fitting import Sample, guards_s, late_copies

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
