"""This machine's numbers, from running the library on it: real checkpoints of few and many, small and large tensors.

Each stage's time is taken to be a constant + a part for each byte + a part for each tensor, and the parts are fitted
to what was measured, by least squares of the relative error with no part below zero. One rank alone tells what a rank
can do, ``ranks_per_node`` ranks together what the node can.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from deeppart.cli.calibrate.tasks import RESTORE, TRAIN, SaveTask

from ..machine.record import Codec, Local, Machine, Memory, Network, Persistent, Serialize
from .start import Directories, measure

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64")
#: (bytes of a rank's share, tensors of it) that are measured, both levels at work. Large ones are copied more slowly
#: than what fits into a cache; the small tensors are of 8 KiB and less.
SHARES = ((64 << 20, 16), (128 << 20, 64), (256 << 20, 16), (160 << 20, 512), (32 << 20, 4096), (64 << 20, 12288))
QUICK_SHARES = ((2 << 20, 16), (24 << 20, 16), (12 << 20, 256), (8 << 20, 2048))
ROUNDS, QUICK_ROUNDS = 7, 4
#: What is fitted: levels until they are complete, from when training goes on.
_FITTED = ("plan", "capture", "local", "persistent", "restore")
#: What a leaf takes in the manifest, where that cannot be told from the rest: 25 ms for 16,384 (docs/simulator.md).
_MANIFEST_LEAF_S = 2e-6
#: What the node of a machine file without a network is given: ranks of one node never use it.
_UNKNOWN_NETWORK = Network(bandwidth=1e10, latency=2e-6)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured checkpoint, by medians over its rounds.

    Attributes:
        ranks: how many.
        share_bytes: of each.
        share_tensors: of each.
        seconds: name -> median of the slowest rank.
    """

    ranks: int
    share_bytes: int
    share_tensors: int
    seconds: Mapping[str, float]


def calibrate(
    name: str,
    ranks_per_node: int,
    directories: Directories,
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Machine:
    """Measure this machine; it is taken for a machine of one node.

    Args:
        name: of the result.
        ranks_per_node: that will share the node.
        directories: of the node's storage and of the file system.

    Raises:
        ConfigError: no mpirun. DeeppartError: measuring failed.
    """
    shares, rounds = (QUICK_SHARES, QUICK_ROUNDS) if quick else (SHARES, ROUNDS)
    progress("one rank alone")
    alone, pieces = _measure(1, shares, rounds, directories, DTYPES)
    together, more, network = alone, pieces, None
    if ranks_per_node > 1:
        progress(f"{ranks_per_node} ranks")
        together, more = _measure(ranks_per_node, shares, rounds, directories, DTYPES[:1])
        network = more["network"]
    return machine_from(name, ranks_per_node, alone, together, pieces, network, more["interference"])


def _measure(
    ranks: int,
    shares: Sequence[tuple[int, int]],
    rounds: int,
    directories: Directories,
    dtypes: Sequence[str],
) -> tuple[list[Sample], dict[str, Any]]:
    saves = [SaveTask(nbytes * ranks, tensors * ranks, persistent=True, rounds=rounds) for nbytes, tensors in shares]
    # A restore makes the next checkpoint slower: apart from the others.
    again = max(2, rounds // 2)
    saves += [SaveTask(nbytes * ranks, tensors * ranks, rounds=again, after=RESTORE) for nbytes, tensors in shares]
    nbytes, tensors = shares[0]
    saves.append(SaveTask(nbytes * ranks, tensors * ranks, persistent=True, rounds=rounds, after=TRAIN))
    found = measure(ranks, saves, directories, dtypes)
    samples = []
    for number, (nbytes, tensors) in enumerate(shares):
        saved, restored = found["saves"][number], found["saves"][len(shares) + number]
        seconds = {name: median(saved[name]) for name in ("capture", "blocked")}
        # Not the slowest rank's planning: where ranks share cores, one plans while another copies already.
        seconds["plan"] = median(
            max(0.0, blocked - capture) for blocked, capture in zip(saved["blocked"], saved["capture"], strict=True)
        )
        for level in ("local", "persistent"):
            seconds[level] = median(
                done - blocked for done, blocked in zip(saved[level], saved["blocked"], strict=True)
            )
        seconds["restore"] = median(restored["restore"])
        samples.append(Sample(ranks, nbytes, tensors, seconds))
    return samples, found["pieces"] | {"interference": _interference(found["saves"][-1])}


def _interference(measured: Mapping[str, Sequence[float]]) -> float:
    """How much slower training is while the background works, as a share of its speed."""
    slowed = sum(measured["trained"]) - sum(measured["blocked"]) - sum(measured["alone"])
    busy = sum(measured["persistent"]) - sum(measured["blocked"])
    return min(max(0.0, slowed / busy), 0.99) if busy > 0 else 0.0


def machine_from(
    name: str,
    ranks_per_node: int,
    alone: Sequence[Sample],
    together: Sequence[Sample],
    pieces: Mapping[str, Any],
    network: Mapping[str, float] | None,
    interference: float = 0.02,
) -> Machine:
    """The machine that the samples are of.

    What ranks compute takes longer where they share cores; a machine file has what it takes with a core of one's own.
    """
    cores = len(os.sched_getaffinity(0))
    crowding = max(1.0, ranks_per_node / cores)
    rank = {what: fit(alone, what) for what in _FITTED}
    node = {what: fit(together, what) for what in _FITTED}
    codecs = {dtype: Codec(**found) for dtype, found in pieces["codec"].items() if found["ratio"] < 1}
    node_copy = _rate(node["capture"][1], ranks_per_node)
    # A restore ends with a copy of the whole state by every rank, which the model has apart.
    rank_read, read = (
        _rest(rank["restore"][1], 1 / _rate(rank["capture"][1])),
        _rest(node["restore"][1], ranks_per_node**2 / node_copy),
    )
    leaf = rank["plan"][2]
    # Every rank looks at all ranks' leaves.
    together_leaf = node["plan"][2] / ranks_per_node / crowding
    # Of what a tensor takes until the commit, rank 0's part grows with all ranks' tensors; one rank alone cannot tell.
    alone_s, together_s = rank["persistent"][2], node["persistent"][2] / crowding
    most = together_s / ranks_per_node
    manifest = min(most, _MANIFEST_LEAF_S)
    if ranks_per_node > 1:
        manifest = min(most, max(0.0, (together_s - alone_s) / (ranks_per_node - 1)))
    return Machine(
        name=name,
        source="deeppart-sim calibrate",
        nodes=1,
        ranks_per_node=ranks_per_node,
        cores=cores,
        encode_threads=max(1, min(4, cores - 1)),
        interference=interference,
        memory=Memory(
            copy=_rate(rank["capture"][1]),
            node_copy=node_copy,
            tensor=node["capture"][2] / crowding,
            call=(node["plan"][0] + node["capture"][0]) / crowding,
            leaf=leaf,
            hash=pieces["hash"],
            compare=max(0.0, together_leaf - leaf) if ranks_per_node > 1 else 0.0,
            restore=node["restore"][0] / crowding,
            restored_leaf=node["restore"][2] / ranks_per_node / crowding,
        ),
        local=Local(
            write=_rate(node["local"][1], ranks_per_node),
            read=_rate(read, ranks_per_node),
            rank_write=_rate(rank["local"][1]),
            rank_read=_rate(rank_read),
            file=node["local"][0],
            tensor=node["local"][2] / crowding,
        ),
        network=replace(_UNKNOWN_NETWORK, parity=pieces["parity"])
        if network is None
        else Network(bandwidth=network["bandwidth"], latency=network["latency"], parity=pieces["parity"]),
        persistent=Persistent(
            write=_rate(node["persistent"][1], ranks_per_node),
            read=_rate(read, ranks_per_node),
            node_write=_rate(node["persistent"][1], ranks_per_node),
            node_read=_rate(read, ranks_per_node),
            rank_write=_rate(rank["persistent"][1]),
            rank_read=_rate(rank_read),
            file=node["persistent"][0],
            tensor=node["persistent"][2] / crowding - ranks_per_node * manifest,
            leaf=manifest,
        ),
        serialize=Serialize(**pieces["serialize"]),
        codecs=MappingProxyType(codecs),
    )


def fit(samples: Sequence[Sample], what: str) -> tuple[float, float, float]:
    """(constant in s, s per byte of a share, s per tensor of a share) of a stage.

    On a machine that is busy otherwise the fit may leave nothing for bytes, as if they moved in no time. Then all of
    the time of the largest share is put down to its bytes: a rate that was reached for sure.
    """
    rows = [(1.0, each.share_bytes, each.share_tensors) for each in samples]
    fitted = _least_squares([each.seconds[what] for each in samples], rows)
    if fitted[1] > 0 or what == "plan":
        return fitted
    largest = max(samples, key=lambda each: each.share_bytes)
    per_byte = largest.seconds[what] / largest.share_bytes
    rest = [max(0.0, each.seconds[what] - per_byte * each.share_bytes) for each in samples]
    constant, _, per_tensor = _least_squares(rest, [(1.0, 0.0, tensors) for _, _, tensors in rows])
    return constant, per_byte, per_tensor


def _least_squares(seconds: Sequence[float], rows: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    from scipy.optimize import nnls

    target = np.maximum(np.array(seconds), 1e-9)
    columns = np.array(rows)
    scale = np.maximum(columns.max(axis=0), 1e-300)
    found, _ = nnls(columns / scale / target[:, None], np.ones(len(target)))
    constant, per_byte, per_tensor = (found / scale).tolist()
    return constant, per_byte, per_tensor


def _rest(seconds_per_byte: float, of_them: float) -> float:
    """What is left without a part; never less than a quarter, since both were measured."""
    return max(seconds_per_byte - of_them, seconds_per_byte / 4)


def _rate(seconds_per_byte: float, ranks: int = 1) -> float:
    """Bytes per second of all ranks together."""
    return ranks / seconds_per_byte if seconds_per_byte > 0 else math.inf
