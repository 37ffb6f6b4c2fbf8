"""Guards and late copies are found again in lazy checkpoints that were put together from them."""

from __future__ import annotations

import pytest
from deeppart_simulator.measure.fitting import Sample
from deeppart_simulator.measure.lazy import guards_s, late_share


def test_a_lazy_call_is_taken_apart_as_the_model_puts_it_together() -> None:
    """Planning and what a copy takes as such are terms of their own: what is left are guards, 20 us each."""
    samples = [
        Sample(2, nbytes, tensors, {"plan": 4e-3 + 3e-6 * tensors, "capture": 1e-3 + nbytes / 4e9})
        for nbytes, tensors in ((64 << 20, 16), (128 << 20, 64), (64 << 20, 4096))
    ]
    late = {"blocked": [4e-3 + 3e-6 * 500 + 1e-3 + 500 * 20e-6], "capture": [0.5]}
    assert guards_s(late, samples, 500) == pytest.approx(500 * 20e-6)
    assert guards_s({"blocked": [1e-3]}, samples, 500) == 0.0


@pytest.mark.parametrize(("copied_s", "late"), [(0.08, 0.5), (0.04, 1.0), (0.02, 1.0), (-0.1, 1.0), (9.0, 0.1)])
def test_a_copy_in_the_background_takes_what_a_lazy_checkpoint_takes_longer(copied_s: float, late: float) -> None:
    """160 MB are copied eagerly in 40 ms; until they are on the node it takes 2 ms and 80 ms, and 1 us a tensor."""
    samples = [
        Sample(
            2,
            nbytes,
            tensors,
            {"capture": nbytes / 4e9 + 2e-6 * tensors, "local": 2e-3 + nbytes / 2e9 + 1e-6 * tensors},
        )
        for nbytes, tensors in ((64_000_000, 16), (128_000_000, 64), (64_000_000, 4096))
    ]
    end_s = 0.01 + copied_s + 500 * 2e-6 + 2e-3 + 0.08 + 500 * 1e-6
    measured = {"blocked": [0.01], "local": [end_s]}
    assert late_share(measured, samples, (160_000_000, 500)) == pytest.approx(late, rel=1e-3)
