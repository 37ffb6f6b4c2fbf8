"""Values that some reader may not expect where they stand."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzz.images import RAW_JSON

NUMBERS = (
    0, 1, 2, 3, 63, 64, 65, 255, 256, 4095, 4096, 65535, 65536, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 24) + 1,
    (1 << 26) - 1, 1 << 26, (1 << 26) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 50, (1 << 50) + 1,
    1 << 61, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -1, -2, -(1 << 31),
    -(1 << 63), -(1 << 64),
)  # fmt: skip
TEXTS = (
    "", "a", "0", "00", "-1", "1_0", " 1", "\ud800", "\0", "../../../etc/passwd", "/etc/passwd", "~/x", "part",
    "x" * 3000, "é", "ﬁ", "fi", "class", "__class__", "_x", "$HOME", "{rank}", "%s", "\x1b[31m", "\n", "model/*",
    "torch", "numpy", "float32", "bfloat16", "qint8", "float4_e2m1fn_x2", "bool", "_export", "load", "float",
    "complex128", "uint64", "<f4", ">f4", "=f4", "f4", "|O", "<U0", "<U3", "<U268435455", "|S67108864", "|S67108865",
    "|V8", ",,,", "(2,3)f4", "(1000000000000,)f4", "<M8[ns]", "<M8[25s/3]", "<M8[9999999999s]", "<m8", "<f16", "<c32",
    "|b1", "i4,f8", "<f5", "cpu", "cuda:0", "cuda:128", "cuda:-1", "meta", "int", "str", "bytes", "complex", "tuple",
    "dtype", "device", "size", "a", "v", "r", "z", "ff" * 40, "7ff8000000000001", "====",
    "AAA=", "0" * 32, "f" * 32,
)  # fmt: skip
#: Containers of small values that no writer has written.
RUNS: tuple[Any, ...] = (
    ["list"], ["list", "ab"], ["list", {"a": 1}], ["list", [1], [2]], ["list", [1 << 70]], ["list", [float("nan")]],
    ["list", ["\ud800"]], ["list", [[]]], ["list", [["size", "ab"]]], [["list"], [1]], ["tuple", ["a", {}]],
    ["dict", [1]], ["dict", [1, 1], [2, 3]], ["dict", [1, True], [2, 3]], ["dict", [1], [2, 3]], ["dict", 1, 2],
    ["dict", [["list", [1]]], [1]], ["dict", [["dict", [], []]], [1]], ["odict", [["set", [1]]], [1]], ["set", [1]] * 2,
    ["counter", ["a"]], ["defaultdict", ["a"], "b"], ["run", "list", [1]], ["list", [["numpy", "|O", "00" * 8]]],
)  # fmt: skip
TAGGED: tuple[Any, ...] = (
    *RUNS, ["int", "f" * 3000], ["int", "-0"], ["int", "1"], ["int", "zz"], ["int", 5], ["int"], ["int", "1", "2"],
    ["float", "7ff0000000000000"], ["float", "3ff0000000000000"], ["float", "00"], ["complex", "0" * 32],
    ["bytes", "QUJD"], ["bytes", "QUI"], ["bytes", [[]]], ["str", "7aCA"], ["str", "/w=="], ["tuple", []],
    ["tuple", [["tuple", [1, "a"]]]], ["tuple", "ab"], ["tuple", [[]]], ["dtype", "float32"], ["dtype", "_export"],
    ["dtype", "nn"], ["dtype", ["a"]], ["device", "cpu"], ["device", 0], ["device", "cuda:128"], ["device", "nope"],
    ["size", [1, 2]], ["size", [1 << 70]], ["size", [1.5]], ["size", "ab"], ["size", [-1]],
    ["numpy", "<f4", "00000000"], ["numpy", "<f4", "00"], ["numpy", "|O", "00" * 8], ["numpy", "<U1", "ffffffff"],
    ["numpy", "<U0", ""], ["numpy", "<M8[ns]", "00" * 8], ["numpy", ",,,", ""], ["none"], [], [[]], [None],
    [["tuple"], []],
)  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    """A value that some reader may not expect where it stands."""
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    if kind == 5:
        return rng.choice(TAGGED)
    if kind == 6:
        return rng.choice(tuple(RAW_JSON))
    if kind == 7:
        return _nested(rng.choice((3, 90, 199, 201, 250)), rng.choice(("list", "node", "tuple")))
    return rng.choice(
        (True, False, None, 1.5, -0.0, 1e308, [], {}, [0], {"a": 1}, [[]], [None] * 70, [1] * 70, {"": {}})
    )


def _nested(depth: int, kind: str) -> Any:
    found: Any = ["v", 0] if kind == "node" else 0
    for _ in range(depth):
        found = ["l", [found]] if kind == "node" else ["tuple", [found]] if kind == "tuple" else [found]
    return found
