"""What goes between nodes, as ranks of one host have it when each of them is taken for a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..machine.record import Network
from .fitting import Sample, bytes_beside, fit, rate

#: What the node of a machine file without a network is given: ranks of one node never use it.
_UNKNOWN = Network(bandwidth=1e10, latency=2e-6)


def between_ranks(pieces: Mapping[str, Any], samples: Sequence[Sample], crowding: float, file_s: float) -> Network:
    """The network of a host."""
    found = pieces["network"]
    # Encoding by itself is ten times as fast as what parity takes with digests and messages.
    parity = min(_UNKNOWN.parity, pieces["parity"])
    if found is None:
        return replace(_UNKNOWN, parity=parity)
    network = Network(bandwidth=found["bandwidth"], latency=found["latency"], parity=parity)
    if not samples:
        return network
    if copied := [each for each in samples if each.seconds["partner"] > 0]:
        as_such_s = [file_s + network.latency] * len(copied)
        network = replace(network, copies=rate(bytes_beside(copied, "partner", as_such_s) / crowding))
    constant, per_byte, _ = fit(samples, "parity", tensors=False)
    exchange = max(0.0, constant - file_s)
    largest = max(samples, key=lambda each: each.share_bytes)
    rebuilding = max(largest.seconds["rebuild"] - exchange, largest.seconds["rebuild"] / 4)
    if rebuilding > 0:  # on a busy machine a restore with a lost node may seem to be as fast as one without
        network = replace(network, rebuild=rate(rebuilding / largest.share_bytes / crowding))
    return replace(network, parity=rate(per_byte / crowding), exchange=exchange)
