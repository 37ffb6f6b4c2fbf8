"""The states of the golden checkpoint, and runs of every form."""

from __future__ import annotations

import collections
import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

from deeppart.model import Box
from deeppart.state import objects as registry
from deeppart.state.objects import register
from deeppart.state.values import encode_value
from tests.features.script_values import Phase, state
from tests.unit.sharded_states import piece, rows

# --- a checkpoint -----------------------------------------------------------------------------------------------------

#: Sharded by rows; held by both ranks; of rank 1 alone, beside a plain tensor that is so, too; no grid.
ROWS, BOTH, STAGE, ODD = (torch.arange(count * 3.0).view(count, 3) for count in (5, 4, 2, 2))
SPARSE = torch.sparse_coo_tensor(
    torch.tensor([[2, 0, 2], [1, 1, 1]]), torch.tensor([1.0, -0.0, 2.5]), (3, 2), check_invariants=True
)


class Meter:
    """Of a registered type."""

    def __init__(self, total: float = 0.0) -> None:
        self.total = total


def register_meter() -> None:
    """Registers it by the name that the file has, if it is not."""
    if registry.registered(Meter) is None:
        register(Meter, lambda meter: {"total": meter.total}, lambda data: Meter(**data), name="golden.Meter")


def odd_boxes(rank: int) -> Any:
    """The first column on rank 0; of the others, each row is a box of its own on rank 1."""
    found = piece(ODD, Box((0, 0), (2, 1)) if rank == 0 else Box((0, 1), (2, 2)))
    if rank == 1:
        found.global_offsets, found.local_offsets = [(0, 1), (1, 1)], [(0, 0), (1, 0)]
        found.local_sizes = [(1, 2), (1, 2)]
    return found


def make_tensors(rank: int) -> dict[str, Any]:
    """Sharded tensors, and tensors that are made of others, of one of two ranks."""
    mine, both = rows(ROWS, rank, 2), piece(BOTH, Box.whole((4, 3)))
    model: dict[str, Any] = {"rows": mine, "tied": mine, "both": both, "half": rows(ROWS.half(), rank, 2)}
    model["odd"] = odd_boxes(rank)
    if rank == 1:
        model |= {"stage": piece(STAGE, Box.whole((2, 3))), "buffer": torch.arange(3)}
    return {"model": model, "plain": torch.arange(7), "sparse": SPARSE.clone()}


def make_values(rank: int) -> dict[str, Any]:
    """Every kind of value and object, some of them not alike on two ranks, and some on one rank alone."""
    register_meter()
    made = state(2)
    made["meter"] = Meter(2.5)
    made["own"] = {"set": {rank, "a"}, "phase": [Phase.WARMUP, Phase.TRAIN][rank]}
    made["apart"] = collections.deque([1, 2][: 1 + rank], maxlen=3)
    return made


def make_states() -> list[dict[str, Any]]:
    """Of two ranks."""
    return [{"tensors": make_tensors(rank), "values": make_values(rank), "step": 9} for rank in range(2)]


# --- runs -------------------------------------------------------------------------------------------------------------

NAN = struct.unpack("<d", bytes.fromhex("0100000000f4ff7f"))[0]
_MANY = 64


def make_runs() -> dict[str, Any]:
    """Name -> the run."""
    many = range(_MANY)
    return {
        "lists of floats": [[place / 4, -0.0, math.inf, NAN] for place in many],
        "lists of other lengths": [[1] * (place % 3) for place in many],
        "tuples": [(place, f"t{place}", None) for place in many],
        "lists, tuples and values": [[1], (1,), 1, 1.0, True, None, "1", [[(1,)]], np.int8(1), b"1", 1 << 70],
        "records": [{"id": place, "name": "größe", "ok": place % 2 == 0} for place in many],
        "records of two kinds": [{"a": place} if place % 2 else {"a": place, "b": None} for place in many],
        "dicts of other keys": [{place: 1, str(place): 2.5} for place in many],
        "keys that are equal": [{1: "int"}, {True: "bool"}, {1.0: "float"}] * 3,
        "empty containers": [[], (), {}, OrderedDict(), Counter()] * 2,
        "odicts and counters": [OrderedDict([("b", 1), ("a", 2)]), Counter("aab")] * 5,
        "texts": [f"word {place} ☃" for place in many],
        "lone surrogates": ["\ud800", "\udc00"] * _MANY,
        "mixed": [7, 2.5, "x", None, True, np.float32(0.5), torch.float16, 1j] * 8,
        "a table": {f"k{place}": [place, -place] for place in many},
        "tuple keys": {(place, "x"): {} for place in many},
        "mixed keys": {(place if place % 2 else str(place)): place for place in many},
    }


def encoded_runs() -> dict[str, Any]:
    """The same, encoded."""
    return {name: encode_value(run, name) for name, run in make_runs().items()}
