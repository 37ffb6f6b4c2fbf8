"""This machine's numbers, from running the library on it: real checkpoints of few and many, small and large tensors.

Each stage's time is taken to be a constant + a part for each byte + a part for each tensor (:mod:`.fitting`). One rank
alone tells what a rank can do, ``ranks_per_node`` ranks together what the node can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

from deeppart.cli.calibrate.tasks import LOSE, RESTORE, TRAIN, SaveTask

from ..machine.record import Codec, Local, Machine, Memory, Persistent, Serialize
from .fitting import (
    Encoded,
    Sample,
    after,
    as_encoded,
    between_ranks,
    bytes_beside,
    fit,
    fit_planning,
    guards_s,
    late_copies,
    rate,
)
from .start import Directories, measure

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64")
#: (bytes of a rank's share, tensors of it) that are measured, both levels at work. Large ones are copied more slowly
#: than what fits into a cache, and small ones tell what does not depend on bytes. The small tensors are of 8 and 4 KiB:
#: lengths that are no multiple of a cache line's take a quarter longer each.
SHARES: Sequence[tuple[int, int]] = (
    (64 << 20, 16),
    (128 << 20, 64),
    (256 << 20, 16),
    (160 << 20, 512),
    (32 << 20, 4096),
    (48 << 20, 12288),
    (24 << 20, 48),
)
QUICK_SHARES: Sequence[tuple[int, int]] = ((2 << 20, 16), (24 << 20, 16), (24 << 20, 256), (8 << 20, 2048))
#: Shares of many and few tensors, large enough for a lazy capture to put their copies off.
LAZY_SHARES, QUICK_LAZY_SHARES = ((160 << 20, 512), (160 << 20, 32)), ((24 << 20, 256), (24 << 20, 16))
#: A share that is compressed, of tensors as large as those that most bytes of a model are in: in smaller ones each byte
#: takes longer.
ENCODED_SHARE, QUICK_ENCODED_SHARE = (64 << 20, 32), (24 << 20, 16)
#: Rounds of each session; of what takes long, or is to be known less well; and sessions.
ROUNDS, QUICK_ROUNDS = (3, 3, 2), (4, 2, 1)
#: The shares that have copies and parity, and that are written to the local level alone.
_PROTECTED, _LOCAL_ONLY = slice(0, 2), slice(0, 3, 2)
#: The shares that are restored from the file system.
_FETCHED = slice(0, 2)
#: The parity groups that are measured have at most so many nodes.
MOST_GROUP = 4
#: What is fitted: levels until they are complete, from when training goes on; processors' time in the background.
_FITTED = ("capture", "local", "persistent", "work", "restore")
#: What a leaf takes in the manifest, where that cannot be told from the rest: 25 ms for 16,384 (docs/simulator.md).
_MANIFEST_LEAF_S = 2e-6


def calibrate(
    name: str,
    ranks_per_node: int,
    directories: Directories,
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Machine:
    """Measure this machine; it is taken for a machine of one node."""
    measured = _Measuring(directories, quick)
    progress("one rank alone")
    alone = together = measured.on(1, DTYPES)
    if ranks_per_node > 1:
        progress(f"{ranks_per_node} ranks")
        together = measured.on(ranks_per_node, DTYPES[:1])
    return machine_from(name, ranks_per_node, alone, together)


@dataclass(frozen=True, slots=True)
class Measured:
    """What ranks have measured together."""

    samples: Sequence[Sample]  # of plain checkpoints and restores, one for each share
    pieces: Mapping[str, Any]  # of :func:`deeppart.cli.calibrate.pieces.measure_pieces`
    local_only: Sequence[Sample] = ()  # of some of the shares, without a persistent level: only their ``work``
    #: of some of the shares, each rank taken for a node: with copies on another one, ``partner``; with parity,
    #: ``parity``, and by how much longer a restore takes where a node is lost, ``rebuild``. Empty with one rank.
    protected: Sequence[Sample] = ()
    #: seconds of a lazy call as such, and for each tensor of the share, beside planning
    defer: tuple[float, float] = (0.0, 15e-6)
    late: tuple[float, float] = (1.0, 0.0)  # of lazy copies, as of :func:`.lazy.late_copies`
    #: time that training lost to the background, as a share of what this takes without training
    interference: float = 0.02
    #: of some of the shares, ``restore`` from the file system, where there is nothing on the nodes
    fetched: Sequence[Sample] = ()
    encoded: Encoded | None = None  # a compressed checkpoint


@dataclass(frozen=True, slots=True)
class _Measuring:
    directories: Directories
    quick: bool

    def on(self, ranks: int, dtypes: Sequence[str]) -> Measured:
        """Measure on so many ranks."""
        shares, (rounds, few, sessions) = (QUICK_SHARES, QUICK_ROUNDS) if self.quick else (SHARES, ROUNDS)
        lazy = QUICK_LAZY_SHARES if self.quick else LAZY_SHARES
        encoded_share = QUICK_ENCODED_SHARE if self.quick else ENCODED_SHARE

        def tasks(those: Sequence[tuple[int, int]], rounds: int, **how: Any) -> list[SaveTask]:
            return [
                SaveTask(nbytes * ranks, tensors * ranks, rounds=rounds, **({"persistent": True} | how))
                for nbytes, tensors in those
            ]

        parity = {"nodes": True, "parity_group": min(ranks, MOST_GROUP)}
        protected = shares[_PROTECTED] if ranks > 1 else ()
        # A restore makes the next checkpoint slower: apart from the others.
        groups = (
            tasks(shares, rounds),
            tasks(shares, few, persistent=False, after=RESTORE),
            tasks(shares[:1], rounds, after=TRAIN),
            tasks(shares[_LOCAL_ONLY], few, persistent=False),
            tasks(lazy, rounds, capture="lazy"),
            tasks(protected, rounds, nodes=True, partner=True),
            tasks(protected, rounds, **parity),
            tasks(protected, few, persistent=False, after=LOSE, **parity),
            tasks(shares[_FETCHED], few, local=False, after=RESTORE),
            tasks([encoded_share], rounds, compression="tensor"),
            tasks([encoded_share], rounds, persistent=False, compression="tensor", after=RESTORE),
        )
        saves = [task for group in groups for task in group]
        found = measure(ranks, saves, self.directories, dtypes, sessions=sessions)
        results = iter(found["saves"])
        by_group = ([next(results) for _ in group] for group in groups)
        plain, restored, trained, local_only, late, copied, kept, lost, fetched, (encoded,), (decoded,) = by_group
        samples = [
            _sample(ranks, share, saved, again) for share, saved, again in zip(shares, plain, restored, strict=True)
        ]
        return Measured(
            samples,
            found["pieces"],
            [
                Sample(ranks, *share, {"work": median(each["work"])})
                for share, each in zip(shares[_LOCAL_ONLY], local_only, strict=True)
            ],
            [
                Sample(ranks, *share, _redundancy(one, two, three, sample))
                for share, one, two, three, sample in zip(protected, copied, kept, lost, samples, strict=False)
            ],
            guards_s(late, samples, lazy),
            late_copies(late, samples, lazy),
            _interference(trained[0], plain[0]),
            [
                Sample(ranks, *share, {"restore": median(each["restore"])})
                for share, each in zip(shares[_FETCHED], fetched, strict=True)
            ],
            Encoded(
                ranks,
                *encoded_share,
                after(encoded, "local", "blocked"),
                _longer_than_raw_s(decoded, samples, encoded_share),
                after(encoded, "persistent", "local"),
            ),
        )


def _sample(
    ranks: int, share: tuple[int, int], saved: Mapping[str, Sequence[float]], restored: Mapping[str, Sequence[float]]
) -> Sample:
    seconds = {name: median(saved[name]) for name in ("capture", "blocked", "work")}
    # Not the slowest rank's planning: where ranks share cores, one plans while another copies already.
    seconds["plan"] = max(0.0, after(saved, "blocked", "capture"))
    seconds |= {level: after(saved, level, "blocked") for level in ("local", "persistent")}
    seconds["restore"] = median(restored["restore"])
    return Sample(ranks, *share, seconds)


def _redundancy(
    copied: Mapping[str, Sequence[float]],
    kept: Mapping[str, Sequence[float]],
    lost: Mapping[str, Sequence[float]],
    sample: Sample,
) -> dict[str, float]:
    """Seconds from the local level to copies, and to parity; and of a restore beyond one that lacks nothing."""
    return {
        "partner": after(copied, "partner", "local"),
        "parity": after(kept, "parity", "local"),
        "rebuild": max(0.0, median(lost["restore"]) - sample.seconds["restore"]),
    }


def _longer_than_raw_s(
    decoded: Mapping[str, Sequence[float]], samples: Sequence[Sample], share: tuple[int, int]
) -> float:
    """Seconds that a restore of what was encoded takes beyond one of raw parts."""
    constant, per_byte, per_tensor = fit(samples, "restore")
    return median(decoded["restore"]) - (constant + per_byte * share[0] + per_tensor * share[1])


def _interference(trained: Mapping[str, Sequence[float]], saved: Mapping[str, Sequence[float]]) -> float:
    """Time that training loses, as a share of what the same background takes where nothing trains.

    Not of what it takes beside training: on shared cores the background has to wait, and lasts several times as long,
    and what predictions know is how long it takes alone.
    """
    lost = [
        with_one - blocked - alone
        for with_one, blocked, alone in zip(trained["trained"], trained["blocked"], trained["alone"], strict=True)
    ]
    busy = after(saved, "persistent", "blocked")
    return min(max(0.0, median(lost) / busy), 0.99) if busy > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Fits:
    """What was fitted to the plain checkpoints, and what the model's terms take of it."""

    ranks: int  # of a node
    crowding: float  # how many times as long computing takes where these share cores
    rank: Mapping[str, tuple[float, float, float]]  # stage -> (constant, per byte, per tensor), of one rank alone
    node: Mapping[str, tuple[float, float, float]]  # the same, of all ranks of a node together
    #: rank_plan, node_plan: planning: (constant, per tensor, besides per large tensor)
    rank_plan: tuple[float, float, float]
    node_plan: tuple[float, float, float]

    @property
    def copies(self) -> tuple[float, float]:
        """Bytes per second that one rank alone copies, and all ranks of the node together."""
        return rate(self.rank["capture"][1]), rate(self.node["capture"][1], self.ranks)


def machine_from(name: str, ranks_per_node: int, alone: Measured, together: Measured) -> Machine:
    """The machine that was measured, by one rank alone and by all of a node together.

    What ranks compute takes longer where they share cores; a machine file has what it takes with a core of one's own.
    """
    pieces = alone.pieces
    cores = len(os.sched_getaffinity(0))
    fits = _Fits(
        ranks_per_node,
        max(1.0, ranks_per_node / cores),
        {what: fit(alone.samples, what) for what in _FITTED},
        {what: fit(together.samples, what) for what in _FITTED},
        fit_planning(alone.samples),
        fit_planning(together.samples),
    )
    codecs = {dtype: Codec(**found) for dtype, found in pieces["codec"].items() if found["ratio"] < 1}
    local, persistent = _storage(fits, alone, together)
    machine = Machine(
        name=name,
        source="deeppart-sim calibrate",
        nodes=1,
        ranks_per_node=ranks_per_node,
        cores=cores,
        encode_threads=max(1, min(4, cores - 1)),
        interference=together.interference,
        memory=_memory(fits, together, pieces["hash"]),
        local=local,
        network=between_ranks(together.pieces, together.protected, fits.crowding, local.file),
        persistent=persistent,
        serialize=Serialize(**pieces["serialize"]),
        codecs=MappingProxyType(codecs),
    )
    return machine if together.encoded is None else as_encoded(machine, together.encoded)


def _memory(fits: _Fits, together: Measured, hash_rate: float) -> Memory:
    """Planning, copies and restores."""
    node, ranks, crowding = fits.node, fits.ranks, fits.crowding
    copy, node_copy = fits.copies
    begin, together_leaf, together_large = fits.node_plan
    leaf = fits.rank_plan[1]
    # Every rank looks at all ranks' leaves.
    held = ranks * crowding
    return Memory(
        copy=copy,
        node_copy=node_copy,
        tensor=node["capture"][2] / crowding,
        call=(begin + node["capture"][0]) / crowding,
        leaf=leaf,
        defer_call=together.defer[0] / crowding,
        defer=together.defer[1] / crowding,
        late=together.late[0],
        late_tensor=together.late[1] / crowding,
        hash=hash_rate,
        compare=max(0.0, together_leaf / held - leaf) if ranks > 1 else 0.0,
        compare_large=together_large / held if ranks > 1 else 0.0,
        restore=node["restore"][0] / crowding,
        restored_leaf=node["restore"][2] / ranks / crowding,
    )


def _storage(fits: _Fits, alone: Measured, together: Measured) -> tuple[Local, Persistent]:
    """The node's own storage, and the file system."""
    rank, node, ranks, crowding = fits.rank, fits.node, fits.ranks, fits.crowding
    copy, node_copy = fits.copies
    # A restore ends with a copy of the whole state by every rank, which the model has apart.
    copied, all_copied = 1 / copy, ranks / min(copy, node_copy / ranks)
    rank_read, read = _rest(rank["restore"][1], copied), _rest(node["restore"][1], all_copied)
    rank_fetch, fetch = rank_read, read
    if alone.fetched and together.fetched:
        # The model has a restore as such and a file of the file system beside it.
        begin, leaf, file = node["restore"][0] / crowding, node["restore"][2] / ranks / crowding, node["persistent"][0]

        def known_s(measured: Measured, crowded: float) -> list[float]:
            """Every rank restores all ranks' leaves: one rank alone has few of them."""
            return [crowded * (begin + leaf * each.ranks * each.share_tensors) + file for each in measured.fetched]

        rank_fetch = _rest(bytes_beside(alone.fetched, "restore", known_s(alone, 1.0)), copied)
        fetch = _rest(bytes_beside(together.fetched, "restore", known_s(together, crowding)), all_copied)
    # Of what a tensor takes until the commit, rank 0's part grows with all ranks' tensors; one rank alone cannot tell.
    alone_s, together_s = rank["persistent"][2], node["persistent"][2] / crowding
    most = together_s / ranks
    manifest = min(most, _MANIFEST_LEAF_S)
    if ranks > 1:
        manifest = min(most, max(0.0, (together_s - alone_s) / (ranks - 1)))
    local_work = (
        min(fit(together.local_only, "work", tensors=False)[1], node["work"][1]) if together.local_only else 0.0
    )
    local = Local(
        write=rate(node["local"][1], ranks),
        read=rate(read, ranks),
        rank_write=rate(rank["local"][1]),
        rank_read=rate(rank_read),
        file=node["local"][0],
        tensor=node["local"][2] / crowding,
        work=rate(local_work),
    )
    return local, Persistent(
        write=rate(node["persistent"][1], ranks),
        read=rate(fetch, ranks),
        node_write=rate(node["persistent"][1], ranks),
        node_read=rate(fetch, ranks),
        rank_write=rate(rank["persistent"][1]),
        rank_read=rate(rank_fetch),
        file=node["persistent"][0],
        tensor=max(0.0, together_s - ranks * manifest),  # rounding may leave less than nothing
        leaf=manifest,
        work=rate(max(node["work"][1] - local_work, node["work"][1] / 10)),
    )


def _rest(seconds_per_byte: float, of_them: float) -> float:
    """What is left without a part; never less than a quarter, since both were measured."""
    return max(seconds_per_byte - of_them, seconds_per_byte / 4)
