"""This machine's numbers, from running the library on it: those with which the simulator predicts what was measured.

Real checkpoints of few and many, small and large tensors are made by one rank alone and by all ranks of a node. The
numbers of the machine are those with the least squares of the logarithms of :func:`.predict.predict` against what was
measured, outliers counting less. What runs in a loop of its own (digests, messages, ``torch.save``, what a codec saves)
is taken as it was timed there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import numpy as np

from deeppart.model import Level

from ..machine.record import RATE, RATIO, Codec, Local, Machine, Memory, Network, Persistent, Serialize
from .predict import MOST_GROUP, predict
from .start import Directories, measure
from .tasks import LOSE, NOTHING, RESTORE, TRAIN, SaveTask

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


@dataclass(frozen=True, slots=True)
class Measured:
    """Real checkpoints of one kind."""

    ranks: int  # that made them
    task: SaveTask  # the checkpoints
    seconds: Mapping[str, float]  # what took how long, by medians of the slowest rank


def calibrate(
    name: str,
    ranks_per_node: int,
    directories: Directories,
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Machine:
    """Measure this machine; it is taken for a machine of one node."""
    measured, pieces = list[Measured](), dict[str, Any]()
    for ranks in sorted({1, ranks_per_node}):
        progress(f"calibrating: {'one rank alone' if ranks == 1 else f'{ranks} ranks'}")
        tasks, sessions = tasks_of(ranks, quick=quick)
        found = measure(ranks, tasks, directories, DTYPES if ranks == 1 else DTYPES[:1], sessions=sessions)
        pieces |= {what: each for what, each in found["pieces"].items() if each is not None and what not in pieces}
        for task, of_task in zip(tasks, found["saves"], strict=True):
            measured.append(Measured(ranks, task, {what: median(rounds) for what, rounds in of_task.items()}))
    progress("calibrating: the fit")
    return fitted(first_guess(name, ranks_per_node, pieces, measured), measured)


def tasks_of(ranks: int, *, quick: bool) -> tuple[list[SaveTask], int]:
    """What is measured on so many ranks, and in how many sessions."""
    shares, (rounds, few, sessions) = (QUICK_SHARES, QUICK_ROUNDS) if quick else (SHARES, ROUNDS)

    def tasks(those: Sequence[tuple[int, int]], rounds: int, **how: Any) -> Iterator[SaveTask]:
        for nbytes, tensors in those:
            yield SaveTask(nbytes * ranks, tensors * ranks, rounds=rounds, **({"persistent": True} | how))

    encoded = [QUICK_ENCODED_SHARE if quick else ENCODED_SHARE]
    parity = {"nodes": True, "parity_group": min(ranks, MOST_GROUP)}
    protected = shares[:2] if ranks > 1 else ()
    # A restore makes the next checkpoint slower: apart from the others.
    groups = (
        tasks(shares, rounds),
        tasks(shares, few, persistent=False, after=RESTORE),
        tasks(shares[:1], rounds, after=TRAIN),
        tasks([max(shares, key=lambda share: (share[0], -share[1]))], few, persistent=False),
        tasks(QUICK_LAZY_SHARES if quick else LAZY_SHARES, rounds, capture="lazy"),
        tasks(protected, rounds, nodes=True, partner=True),
        tasks(protected, rounds, **parity),
        tasks(protected, few, persistent=False, after=LOSE, **parity),
        tasks(shares[:2], few, local=False, after=RESTORE),
        tasks(encoded, rounds, compression="tensor"),
        tasks(encoded, rounds, persistent=False, compression="tensor", after=RESTORE),
    )
    return [task for group in groups for task in group], sessions


# --- the fit ----------------------------------------------------------------------------------------------------------


#: Codecs are timed in a loop, where they are up to 1.8 times as fast as within a checkpoint.
_ENCODE, _DECODE = "codecs.encode", "codecs.decode"
#: What is fitted: keys of the machine file.
_FITTED = (
    "memory.copy", "memory.tensor", "memory.call", "memory.leaf", "memory.defer_call", "memory.defer", "memory.late",
    "memory.late_tensor", "memory.restore", "memory.restored_leaf",
    "local.rank_write", "local.rank_read", "local.file", "local.tensor", "local.work",
    "persistent.rank_write", "persistent.rank_read", "persistent.file", "persistent.tensor", "persistent.commit",
    "persistent.work", _ENCODE, _DECODE, "interference",
)  # fmt: skip
#: One rank alone compares nothing, and shares with nobody.
_OF_SEVERAL = (
    "persistent.leaf", "memory.compare", "memory.compare_large",
    "network.copies", "network.parity", "network.rebuild", "network.exchange",
)  # fmt: skip
#: Table, rate of one rank -> rates of the node: from that to as many times that as there are ranks.
_OF_NODE = {
    ("memory", "copy"): ("node_copy",),
    ("local", "rank_write"): ("write",),
    ("local", "rank_read"): ("read",),
    ("persistent", "rank_write"): ("write", "node_write"),
    ("persistent", "rank_read"): ("read", "node_read"),
}
_RECORDS = ("memory", "local", "network", "persistent")
#: Steps, what is no improvement any more, and from which error on one counts less.
_MOST_STEPS, _CLOSE, _USUAL = 40, 1e-6, 0.3
#: One rank alone tells what all of a node cannot; where both do, these count.
_ALONE_COUNTS = 0.3
#: Nothing is shorter, in seconds.
_LEAST_S = 1e-9
#: Of each number in units of the first guess: seconds, or for a rate seconds per byte.
_LEAST, _MOST = 1e-6, 1e4
_BOUNDS = {_ENCODE: (0.5, 4.0), _DECODE: (0.5, 4.0), "memory.late": (1.0, 10.0), "interference": (_LEAST, 9.9)}


def first_guess(name: str, ranks: int, pieces: Mapping[str, Any], measured: Sequence[Measured]) -> Machine:
    """A machine of round numbers, with what was timed in a loop, and with rates that are too slow: those at which all
    of the time would go into bytes. A level that is predicted to wait for nothing but the one before would tell nothing
    of its own speed.
    """
    cores = len(os.sched_getaffinity(0))
    codecs = {dtype: Codec(**found) for dtype, found in pieces["codec"].items() if found["ratio"] < 1}
    copy, write, flush = (_slowest(measured, what, _RAW) for what in ("capture", Level.LOCAL, Level.PERSISTENT))
    read, fetch = (_slowest(measured, "restore", _RESTORED | {"local": local}) for local in (True, False))
    return Machine(
        name=name,
        source="deeppart-sim calibrate",
        nodes=1,
        ranks_per_node=ranks,
        cores=cores,
        encode_threads=max(1, min(4, cores - 1)),
        interference=0.1,
        memory=Memory(
            copy=copy, node_copy=copy, defer_call=1e-3, compare_large=1e-6, late_tensor=5e-6, hash=pieces["hash"]
        ),
        local=Local(write=write, read=read, rank_write=write, rank_read=read, work=4e9),
        network=Network(**(pieces.get("network") or {"bandwidth": 1e10}), copies=1e9, parity=5e8, exchange=5e-3),
        persistent=Persistent(
            write=flush, read=fetch, node_write=flush, node_read=fetch, rank_write=flush, rank_read=fetch,
            commit=1e-3, work=2e9,
        ),
        serialize=Serialize(**pieces["serialize"]),
        codecs=codecs,
    )  # fmt: skip


_RAW: Mapping[str, Any] = {"after": NOTHING, "capture": "eager", "compression": "none", "persistent": True}
_RESTORED: dict[str, Any] = {"after": RESTORE, "compression": "none"}


def _slowest(measured: Sequence[Measured], what: str, how: Mapping[str, Any]) -> float:
    """Bytes per second of one rank alone, from the largest checkpoint of a kind."""
    found = [each for each in measured if each.ranks == 1 and all(getattr(each.task, key) == how[key] for key in how)]
    largest = max(found, key=lambda each: (each.task.nbytes, -each.task.tensors))
    return float(largest.task.nbytes / largest.seconds[what])


def fitted(guess: Machine, measured: Sequence[Measured]) -> Machine:
    """The machine that predicts best what was measured."""
    from scipy.optimize import least_squares  # late: other commands need no scipy

    ranks = guess.ranks_per_node
    bounds = {path: _BOUNDS.get(path, (_LEAST, _MOST)) for path in _FITTED}
    if ranks > 1:
        bounds |= dict.fromkeys(_OF_SEVERAL, (_LEAST, _MOST))
        bounds |= {f"{table}.{keys[0]}": (1.0, float(ranks)) for (table, _), keys in _OF_NODE.items()}
    found = least_squares(
        lambda units: list(_errors(_changed(guess, bounds, units), measured)), np.ones(len(bounds)),
        bounds=tuple(zip(*bounds.values(), strict=True)), x_scale="jac", loss="soft_l1", f_scale=_USUAL,
        ftol=_CLOSE, xtol=_CLOSE, max_nfev=_MOST_STEPS,
    )  # fmt: skip
    return _changed(guess, bounds, found.x)


def _errors(machine: Machine, measured: Sequence[Measured]) -> Iterator[float]:
    for each in measured:
        weight = 1.0 if each.ranks == machine.ranks_per_node else _ALONE_COUNTS
        predicted = predict(machine, each.ranks, each.task, alone_s=each.seconds["alone"])
        for what in _compared(each.task):
            yield weight * math.log(max(predicted[what], _LEAST_S) / max(each.seconds[what], _LEAST_S))


def _compared(task: SaveTask) -> tuple[str, ...]:
    """What is predicted of some checkpoints."""
    if task.after != NOTHING:
        return ("trained",) if task.after == TRAIN else ("restore",)
    if not task.persistent:
        return ("work",)
    plain = task.capture == "eager" and task.compression == "none" and not task.nodes
    most = task.nbytes // task.tensors >= 1 << 20  # work as such, and for each tensor, is no part of the model
    return ("blocked", *task.levels, *(("capture",) if plain else ()), *(("work",) if plain and most else ()))


def _changed(guess: Machine, paths: Iterable[str], units: Sequence[float]) -> Machine:
    """The first guess with so many times the seconds of each number."""
    tables: dict[str, dict[str, float]] = {name: {} for name in ("", "codecs", *_RECORDS)}
    for path, unit in zip(paths, np.asarray(units).tolist(), strict=True):
        table, _, key = path.rpartition(".")
        tables[table][key] = unit
    crowds = {(table, keys): tables[table].pop(keys[0], 1.0) for (table, _), keys in _OF_NODE.items()}
    records = {name: _scaled(getattr(guess, name), tables[name]) for name in _RECORDS}
    for (table, key), keys in _OF_NODE.items():
        rate = getattr(records[table], key) * guess.ranks_per_node / crowds[table, keys]
        records[table] = replace(records[table], **dict.fromkeys(keys, rate))
    codecs = {dtype: _scaled(codec, tables["codecs"]) for dtype, codec in guess.codecs.items()}
    found: Machine = replace(_scaled(guess, tables[""]), codecs=codecs, **records)
    return found


def _scaled(record: Any, units: Mapping[str, float]) -> Any:
    """A record where what some keys are about takes so many times as long."""
    kinds = {each.name: each.metadata["kind"] for each in fields(record) if each.name in units}
    values = {key: getattr(record, key) for key in kinds}
    return replace(
        record,
        **{key: old / units[key] if kinds[key] in (RATE, RATIO) else old * units[key] for key, old in values.items()},
    )
