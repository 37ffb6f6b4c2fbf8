"""Makes the golden encodings of runs: ``python -m tests.golden.make_runs FILE``.

``tests/golden/structure-v3/runs.json`` was made once and stays as it is: later versions of the library must read it,
and this one writes it. Every form of a column that version 3 of the structure document has is in it.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeppart.state.tree.runs import encode_leaf_value

NAN = struct.unpack("<d", bytes.fromhex("0100000000f4ff7f"))[0]
_MANY = 64


def make_runs() -> dict[str, Any]:
    """Name -> the run."""
    rows = range(_MANY)
    return {
        "lists of floats": [[place / 4, -0.0, math.inf, NAN] for place in rows],
        "lists of other lengths": [[1] * (place % 3) for place in rows],
        "tuples": [(place, f"t{place}", None) for place in rows],
        "lists, tuples and values": [[1], (1,), 1, 1.0, True, None, "1", [[(1,)]], np.int8(1), b"1", 1 << 70],
        "records": [{"id": place, "name": "größe", "ok": place % 2 == 0} for place in rows],
        "records of two kinds": [{"a": place} if place % 2 else {"a": place, "b": None} for place in rows],
        "dicts of other keys": [{place: 1, str(place): 2.5} for place in rows],
        "keys that are equal": [{1: "int"}, {True: "bool"}, {1.0: "float"}] * 3,
        "empty containers": [[], (), {}, OrderedDict(), Counter()] * 2,
        "odicts and counters": [OrderedDict([("b", 1), ("a", 2)]), Counter("aab")] * 5,
        "texts": [f"word {place} \u2603" for place in rows],
        "lone surrogates": ["\ud800", "\udc00"] * _MANY,
        "mixed": [7, 2.5, "x", None, True, np.float32(0.5), torch.float16, 1j] * 8,
        "a table": {f"k{place}": [place, -place] for place in rows},
        "tuple keys": {(place, "x"): {} for place in rows},
        "mixed keys": {(place if place % 2 else str(place)): place for place in rows},
    }


def main(path: str) -> None:
    """Write the file; refuses to replace one."""
    encoded = {
        name: json.dumps(encode_leaf_value(run, name), separators=(",", ":")) for name, run in make_runs().items()
    }
    lines = ",\n".join(f"{json.dumps(name)}:{text}" for name, text in encoded.items())
    with Path(path).open("x") as file:
        file.write(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1])
