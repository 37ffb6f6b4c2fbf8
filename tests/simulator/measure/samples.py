"""Measurements of a machine that is known, made by arithmetic."""

from __future__ import annotations

from deeppart_simulator.measure.fitting import Sample

PIECES = {
    "codec": {
        "float32": {"ratio": 0.83, "encode": 1.7e9, "decode": 1.8e9},
        "int64": {"ratio": 1.0, "encode": 1.0, "decode": 1.0},
    },
    "hash": 16e9,
    "parity": 2.5e9,
    "serialize": {"stream": 1.5e9, "tensor": 2e-5},
    "network": {"bandwidth": 5e9, "latency": 1e-6},
}


def samples_of(ranks: int, crowding: float = 1.0) -> list[Sample]:
    """What a machine with round numbers would show: 10 GB/s copies of one rank, 16 of all, and so on."""
    samples = []
    for nbytes, tensors in ((1 << 20, 10), (1 << 27, 10), (1 << 25, 5000)):
        plan = (1e-3 + (2e-6 + (3e-6 if ranks > 1 else 0)) * tensors * ranks) * crowding
        capture = nbytes / min(10e9, 16e9 / ranks) + 4e-6 * tensors
        blocked = plan + capture
        local = 2e-3 + nbytes / min(2e9, 3e9 / ranks)
        persistent = 5e-3 + nbytes / min(1e9, 1.5e9 / ranks)
        restore = 1e-3 + nbytes / min(4e9, 6e9 / ranks)
        seconds = {"plan": plan, "capture": capture, "blocked": blocked, "local": local, "work": nbytes / 4e9}
        samples.append(Sample(ranks, nbytes, tensors, seconds | {"persistent": persistent, "restore": restore}))
    return samples
