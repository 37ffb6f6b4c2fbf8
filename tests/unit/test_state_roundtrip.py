"""Exact round trips of everything design section 3 lists: checkpoint and load, checkpoint and restore in place."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.leaves import TORCH_DTYPES
from deeppart.state.values import decode_value, encode_value
from deeppart.testing.states import Box, array_bytes, blank, difference

Point = namedtuple("Point", "x y")
HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


class Typed(NamedTuple):
    weight: Any
    name: str = "w"


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **{"timeout": 20.0, **settings})


def save(directory: Path, state: Any, **settings: Any) -> deeppart.Report:
    with deeppart.Checkpointer(config(directory, **settings)) as ck:
        pending = ck.checkpoint(state, step=1)
        pending.wait(timeout=200)
        return pending.report


def restore(directory: Path, live: Any) -> Any:
    with deeppart.Checkpointer(config(directory)) as ck:
        assert ck.restore(live) == 1
    return live


def both_ways(directory: Path, state: Any) -> Any:
    """Save, load, restore into a blank clone; everything must be equal. Returns what was loaded."""
    save(directory, state)
    loaded = deeppart.load(directory / "ckpt")
    assert difference(state, loaded) is None
    live = restore(directory, blank(state))
    assert difference(state, live, ordered=False) is None
    return loaded


def wrapped(item: Any) -> dict[str, Any]:
    return {"item": item}


# --- containers and keys ----------------------------------------------------------------------------------------------

CONTAINERS = {
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "empties": {"a": {}, "b": [], "c": (), "d": OrderedDict(), "e": Counter(), "f": [[], {}], "g": ((),)},
    "insertion order": {"z": 1, "a": torch.ones(2), "m": 3},
    "odict order": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter({3: 2, 7: 1, "x": -4, (1, 2): 0}),
    "namedtuple": Point(torch.arange(3), Point(1, [2])),
    "typed namedtuple": Typed(torch.arange(3.0)),
    "renamed fields": namedtuple("R", "a class def", rename=True)(1, 2, torch.ones(1)),  # type: ignore[call-arg, arg-type]
    "tuple of tuples": (1, (2, (3, torch.ones(2)), ()), [(), ((),)]),
    "list of everything": [1, "a", None, 2.5, b"x", torch.ones(1), np.ones(1), [0], {"k": 0}, (0,)],
    "same key text": {1: "int", "1": "str", b"1": "bytes", 1.5: "float", "1.5": "text", (1,): "tuple"},
    "bool keys": {True: torch.ones(1), False: torch.zeros(1), 2: "two"},
    "separators": {"a.b": 1, "a/b": 2, "a": {"b": 3}, "a~1b": 4, "~": 5, "~0": 6, "": 7, "/": 8, ".": 9},
    "odd keys": {None: 1, -1: 2, (): 3, (1, (2, "x"), None): 4, b"\xff\x00": 5, "\0": 6, "ä": 7, "\ud800": 8},
    "float keys": {0.5: 1, math.inf: 2, -math.inf: 3, 5e-324: 4, -0.0: 5},
    "value keys": {torch.float32: 1, torch.device("cpu"): 2, torch.Size([2]): 3, np.int8(3): 4, 2j: 5},
    "huge keys": {HUGE: torch.ones(2), -HUGE: 1, (HUGE,): 2, "x": 3},
    "many int keys": {i: torch.full((1,), float(i)) for i in (10, 9, 100, 2, -5)},
    "numeric text": {"10": 1, "9": 2, "0" * 5000 + "1": 3},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_and_keys(tmp_path: Path, name: str) -> None:
    both_ways(tmp_path, wrapped(CONTAINERS[name]))


@pytest.mark.parametrize("name", [n for n in CONTAINERS if n not in ("tuple of tuples", "typed namedtuple")])
def test_any_container_can_be_the_root(tmp_path: Path, name: str) -> None:
    state = CONTAINERS[name]
    save(tmp_path, state)
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None


def test_a_leaf_can_be_the_root(tmp_path: Path) -> None:
    save(tmp_path, torch.arange(5))
    assert difference(torch.arange(5), deeppart.load(tmp_path / "ckpt")) is None
    live = restore(tmp_path, torch.zeros(5, dtype=torch.int64))
    assert live.tolist() == [0, 1, 2, 3, 4]


def test_a_value_can_be_the_root(tmp_path: Path) -> None:
    save(tmp_path, 42)
    assert deeppart.load(tmp_path / "ckpt") == 42
    assert restore(tmp_path, 42) == 42


def test_a_namedtuple_comes_back_from_load_with_its_name_and_fields(tmp_path: Path) -> None:
    loaded = both_ways(tmp_path, wrapped(Point(1, 2)))["item"]
    assert type(loaded).__name__ == "Point" and loaded._fields == ("x", "y") and type(loaded) is not Point


def test_a_live_namedtuple_keeps_its_class(tmp_path: Path) -> None:
    class Careful(namedtuple("Careful", "x y")):
        def __new__(cls, both: int) -> Careful:
            return super().__new__(cls, both, both)

    save(tmp_path, wrapped(Careful(3)))
    live = restore(tmp_path, wrapped(Careful(0)))["item"]
    assert type(live) is Careful and tuple(live) == (3, 3)


def test_deep_nesting(tmp_path: Path) -> None:
    state: Any = torch.ones(2)
    for depth in range(60):
        state = [{"d": (state,)}, Point(depth, OrderedDict(z=1))]
    both_ways(tmp_path, wrapped(state))


def test_order_of_dicts_is_that_of_each_checkpoint(tmp_path: Path) -> None:
    """The structure is cached between checkpoints; the order of an OrderedDict (an LRU cache, say) may change."""
    recent, plain = OrderedDict(a=torch.zeros(1), b=1, c=2), {"x": 1, "y": 2}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step, key in enumerate("acb"):
            recent.move_to_end(key)
            plain["x"] = plain.pop("x")
            state = {"recent": recent, "plain": plain}
            ck.checkpoint(state, step=step).wait(timeout=200)
            assert difference(state, deeppart.load(tmp_path / "ckpt", step)) is None
        live = OrderedDict(c=0, b=0, a=torch.ones(1))
        ck.restore({"recent": live, "plain": {"y": 0, "x": 0}})
    assert list(live) == list(recent)


SQUARE, CUBE, ARRAY = torch.randn(8, 8), torch.randn(4, 4, 4), np.random.default_rng(1).random((8, 8))
#: Other elements of the same memory: address, dtype and shape are alike, and both are not contiguous.
VIEWS: list[tuple[Any, Any]] = [
    ({"all": SQUARE, "x": SQUARE[:4, :4]}, {"all": SQUARE, "x": SQUARE[:4, :4].t()}),
    ({"x": SQUARE[:4, :4], "y": SQUARE[:4, :4]}, {"x": SQUARE[:4, :4], "y": SQUARE[:4, :4].t()}),
    ({"all": ARRAY, "x": ARRAY[:4, :4]}, {"all": ARRAY, "x": ARRAY[:4, :4].T}),
    ({"x": ARRAY[:4, :4], "y": ARRAY[:4, :4]}, {"x": ARRAY[:4, :4], "y": ARRAY[:4, :4].T}),
    ({"all": CUBE, "x": CUBE.permute(0, 2, 1)}, {"all": CUBE, "x": CUBE.permute(2, 1, 0)}),
]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({1: 0}, {True: 0}),
        ({(1, "a"): 0}, {(True, "a"): 0}),
        ({0.0: 0}, {-0.0: 0}),
        ({1: 0}, {1.0: 0}),
        ({"x": Point(1, 2)}, {"x": namedtuple("Point", "y x")(1, 2)}),  # type: ignore[call-arg, arg-type]
        ({"x": (1, 2)}, {"x": [1, 2]}),
        ({"x": {}}, {"x": OrderedDict()}),
        ({"x": Counter()}, {"x": {}}),
        ({"x": torch.ones(2)}, {"x": np.ones(2)}),
        ({"x": torch.ones(4)}, {"x": torch.ones(2, 2)}),
        ({"x": torch.ones(4)}, {"x": torch.ones(4).to(torch.int32)}),
        ({"list": "dict"}, {"list": ["dict"]}),
        ({"x": []}, {"x": [[]]}),
        ({"x": torch.ones(4, 4)}, {"x": torch.ones(4, 4).T}),
        *VIEWS,
    ],
)
def test_a_structure_that_looks_alike_is_not_taken_for_the_cached_one(tmp_path: Path, first: Any, second: Any) -> None:
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step, state in enumerate((first, second, first)):
            ck.checkpoint(wrapped(state), step=step).wait(timeout=200)
        for step, state in enumerate((first, second, first)):
            assert difference(wrapped(state), deeppart.load(tmp_path / "ckpt", step)) is None


# --- small values -----------------------------------------------------------------------------------------------------


def nan(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


VALUES = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, HUGE, -HUGE],
    "floats": [0.0, -0.0, 1.5, 5e-324, -5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16, 1e22, 123456789.123456789],
    "infinities": [math.inf, -math.inf],
    "nans": [math.nan, nan(0x7FF8DEADBEEF0001), nan(0xFFF8000000000000), nan(0x7FF0000000000001)],
    "complex": [0j, complex(-0.0, 0.0), complex(0.0, -0.0), complex(math.nan, math.inf), 1e300 + 1e-300j],
    "texts": ["", "ascii", "ä€𝄞", "\0", "a\0b", "\n\r\t\x1b", '"\\', "x" * 100_000],
    "surrogates": ["\ud800", "\udfff", "\ud800\udc00", "a\ud83d", "\ude00\ud83d"],
    "like tags": ["int", ["int", "ff"], ["float", "00"], "\u2028"],
    "bytes": [b"", b"\0\xff", bytes(range(256)), b"x" * 100_000],
    "torch": [torch.float32, torch.bfloat16, torch.qint8, torch.bits8, torch.device("cuda:3"), torch.device("meta")],
    "sizes": [torch.Size([]), torch.Size([3, 0])],
    "numpy scalars": [
        np.float32(1.5), np.float64(-0.0), np.float16("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True),
        np.complex64(1 - 2j), np.longdouble("1.1"), np.str_("ü\0x"), np.str_("a\0\0"), np.str_(""),
        np.bytes_(b"a\xff"), np.bytes_(b"a\0\0"), np.bytes_(b""),
        np.datetime64("2024-02-29T12:00:00.123456789"), np.datetime64("NaT"), np.timedelta64(-5, "ms"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values(tmp_path: Path, name: str) -> None:
    both_ways(tmp_path, wrapped(VALUES[name]))


@pytest.mark.parametrize("name", VALUES)
def test_values_encode_to_json_that_decodes_to_them(name: str) -> None:
    import json

    from deeppart.testing.states import value_bits

    values: Any = VALUES[name]
    for value in values if isinstance(values, list) else [values]:
        if not isinstance(value, list):
            text = json.dumps(encode_value(value, "here"), allow_nan=False)
            assert text.isascii() and len(text) < 300_000
            assert value_bits(decode_value(json.loads(text), "here")) == value_bits(value)


@pytest.mark.parametrize(
    ("kind", "stored"), [(np.longlong, np.int64), (np.ulonglong, np.uint64), (np.intc, np.int32), (np.half, np.float16)]
)
def test_numpy_types_that_a_file_does_not_tell_apart(tmp_path: Path, kind: Any, stored: Any) -> None:
    """numpy has a second type for integers of 64 bits, which it writes like the first."""
    run = [kind(n) for n in range(20)]
    state = {"n": kind(7), "run": run, "array": np.arange(3, dtype=kind), "keys": {kind(5): 1, "a": 2, 3: 3, 2.5: 4}}
    save(tmp_path, state)
    live = restore(tmp_path, {**state, "n": kind(0), "keys": {kind(5): 0, "a": 0, 3: 0, 2.5: 0}})
    for found in (deeppart.load(tmp_path / "ckpt"), live):
        assert type(found["n"]) is stored and found["n"] == 7
        assert set(map(type, found["run"])) == {stored} and found["run"] == run
        assert found["array"].dtype == stored and list(found["array"]) == [0, 1, 2]
        assert found["keys"] == {5: 1, "a": 2, 3: 3, 2.5: 4}


# --- tensors and arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_torch_dtype_with_every_byte_in_every_position(tmp_path: Path, name: str) -> None:
    dtype = TORCH_DTYPES[name]
    bits = torch.arange(256 * 48, dtype=torch.int64).mul(40503).bitwise_right_shift(4).to(torch.uint8)
    if dtype is torch.bool:
        bits &= 1
    flat = bits.view(dtype)

    def fresh() -> torch.Tensor:
        return bits.clone().view(dtype)

    state = {
        "flat": flat,
        "matrix": fresh().view(-1, 4),
        "transposed": fresh().view(-1, 4).T,
        "strided": fresh()[1::3],
        "one of many": fresh()[5:6],
        "strided one": fresh()[::7][:1],
        "0-dim": fresh()[3],
        "empty": flat[:0],
        "empty 3d": flat[:0].view(2, 0, 3),
        "last": fresh().view(2, -1)[:, -1:],
    }
    both_ways(tmp_path, state)


NUMPY = {
    "bool": np.array([True, False, True]),
    "ints": np.arange(-5, 5, dtype="i2"),
    "big endian": np.arange(5, dtype=">f8"),
    "big endian matrix": np.arange(6, dtype=">u4").reshape(2, 3).T,
    "float16": np.array([1.5, np.nan, -0.0], dtype="f2"),
    "longdouble": np.array([1, 3], dtype="g") / 3,
    "complex": np.array([1 + 2j, np.nan], dtype="c8"),
    "text": np.array(["", "a", "äöü", "\U0001f600"]),
    "big endian text": np.array(["ab", "c"]).astype(">U3"),
    "bytes": np.array([b"", b"abc", b"\0x"]),
    "odd bytes": np.array([b"abcde", b"f"], dtype="S5"),
    "dates": np.array(["2024-02-29", "NaT"], dtype="M8[D]"),
    "durations": np.array([1, -1], dtype="m8[ns]"),
    "0-dim": np.array(2.5),
    "0-dim text": np.array("text"),
    "empty": np.zeros((0, 3)),
    "strided": np.arange(20)[::3],
    "strided one": np.arange(20)[::3][:1],
    "reversed": np.arange(20)[::-1],
    "both reversed": np.arange(20).reshape(4, 5)[::-1, ::-2],
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "unaligned": np.frombuffer(b"\1" + bytes(range(16)), dtype="<i4", offset=1, count=4),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays(tmp_path: Path, name: str) -> None:
    loaded = both_ways(tmp_path, wrapped(NUMPY[name]))["item"]
    assert loaded.dtype.str == NUMPY[name].dtype.str, "byte order is part of the type"


def test_numpy_arrays_of_all_kinds_beside_each_other(tmp_path: Path) -> None:
    both_ways(tmp_path, dict(NUMPY))


@pytest.mark.parametrize("itemsize", [3, (4 << 20) - 1, (4 << 20) + 1, 9 << 20])
def test_elements_larger_than_a_chunk(tmp_path: Path, itemsize: int) -> None:
    array = np.array([b"a" * itemsize, b"b" * (itemsize - 1)])
    both_ways(tmp_path, wrapped(array))
    both_ways(tmp_path / "reversed", wrapped(array[::-1]))


def test_nan_payloads_in_tensors_and_arrays(tmp_path: Path) -> None:
    payloads = torch.tensor([0x7FC00001, 0x7F800001, -1, -0x80000000, 0x7F800000], dtype=torch.int32)
    half = torch.tensor([0x7E01, 0x7C01, -1, -0x8000], dtype=torch.int16)
    state = {
        "f32": payloads.view(torch.float32),
        "f32 strided": payloads.repeat_interleave(2).view(torch.float32)[::2],
        "f16": half.view(torch.float16),
        "bf16": half.view(torch.bfloat16),
        "numpy": payloads.numpy().view("f4").copy(),
        "numpy strided": np.repeat(payloads.numpy().view("f4"), 3)[::3],
    }
    both_ways(tmp_path, state)


def test_lazily_conjugated_and_negated_views(tmp_path: Path) -> None:
    base = torch.complex(torch.arange(6.0), -torch.arange(6.0)).view(2, 3)
    state = {"conj": base.conj(), "neg": base.clone().conj().imag, "transposed": base.clone().mH}
    assert state["neg"].is_neg()
    save(tmp_path, state)
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None
    live = {name: torch.zeros_like(tensor.resolve_conj().resolve_neg()) for name, tensor in state.items()}
    assert difference(state, restore(tmp_path, live)) is None


def test_lazily_conjugated_live_tensors_are_written_through(tmp_path: Path) -> None:
    base = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1)
    save(tmp_path, (base, base.clone().imag))
    under = torch.zeros(6, dtype=torch.complex64), torch.zeros(6, dtype=torch.complex64)
    live = under[0].conj(), under[1].conj().imag
    assert live[0].is_conj() and live[1].is_neg()
    restore(tmp_path, live)
    assert torch.equal(live[0], base) and torch.equal(under[0], base.conj())
    assert torch.equal(live[1], base.imag) and torch.equal(under[1].imag, -base.imag)


def test_only_the_elements_of_a_view_are_saved(tmp_path: Path) -> None:
    base = torch.zeros(1 << 20)
    report = save(
        tmp_path, {"a": base[::4096], "b": np.zeros(1 << 20)[: 1 << 18 : 1024], "c": base.view(1024, -1)[:, 7]}
    )
    assert report.raw_bytes == 4 * 256 + 8 * 256 + 4 * 1024
    assert sum(file.stat().st_size for file in next((tmp_path / "ckpt").glob("step-*")).iterdir()) < 20_000


def test_expanded_tensors_are_saved_as_they_read(tmp_path: Path) -> None:
    state = {"e": torch.arange(3.0).view(3, 1).expand(3, 4), "b": np.broadcast_to(np.arange(2), (3, 2))}
    both_ways(tmp_path, state)


def test_autograd_is_neither_needed_nor_touched(tmp_path: Path) -> None:
    leaf = torch.ones(3, requires_grad=True)
    state = {"p": torch.nn.Parameter(torch.arange(4.0)), "leaf": leaf, "result": leaf * 2, "frozen": torch.ones(2)}
    loaded = both_ways(tmp_path, state)
    assert not any(tensor.requires_grad for tensor in loaded.values())
    live = {
        "p": torch.nn.Parameter(torch.zeros(4)),
        "leaf": torch.zeros(3, requires_grad=True),
        "result": torch.zeros(3),
        "frozen": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    }
    before = dict(live)
    restore(tmp_path, live)
    assert all(live[name] is before[name] for name in live)
    assert live["p"].requires_grad and live["leaf"].is_leaf and not live["frozen"].requires_grad
    assert difference(state, live) is None


def test_thousands_of_small_tensors(tmp_path: Path) -> None:
    """Of odd sizes, so that shares, chunks and segments do not line up. (100,000: benchmarks, not tests.)"""
    state = {f"layer{i % 97}.{i}": torch.full((i % 5,), i, dtype=torch.int32) for i in range(20_000)}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step in (1, 2):
            state["layer1.1"].fill_(step)
            pending = ck.checkpoint(state, step=step)
            pending.wait(timeout=200)
        live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        ck.restore(live)
    assert all(torch.equal(live[name], state[name]) for name in state)


@pytest.mark.parametrize("nbytes", [(4 << 20) - 1, 4 << 20, (4 << 20) + 1, (1 << 20) - 1, 1 << 20, 13_000_001])
def test_leaves_around_the_size_of_a_chunk(tmp_path: Path, nbytes: int) -> None:
    data = torch.arange(nbytes, dtype=torch.int64).mul_(2654435761).bitwise_right_shift_(13).to(torch.uint8)
    state = {
        "big": data,
        "small": torch.ones(3),
        "odd": data[:77],
        "mixed": data[: nbytes // 8 * 8].clone().view(torch.float64),
    }
    save(tmp_path, state)
    loaded = deeppart.load(tmp_path / "ckpt")
    assert all(array_bytes(loaded[name]) == array_bytes(state[name]) for name in state)


@pytest.mark.parametrize("compression", ["none", "auto", "tensor", "zstd", "zstd:19", "zstd:-5"])
def test_every_compression(tmp_path: Path, compression: str) -> None:
    generator = torch.Generator().manual_seed(1)
    state = {
        "noise": torch.randn(70_000, generator=generator),
        "zeros": torch.zeros(2_000_000, dtype=torch.uint8),
        "ints": torch.arange(50_000),
        "tiny": torch.ones(1),
    }
    report = save(tmp_path, state, compression=compression)
    assert (report.encoded_bytes < report.raw_bytes) == (compression not in ("none", "auto"))  # auto: nothing known yet
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None
    assert difference(state, restore(tmp_path, blank(state))) is None


# --- load with keys ---------------------------------------------------------------------------------------------------


def test_load_reads_what_keys_name(tmp_path: Path) -> None:
    state = {"model": {"a.w": torch.ones(2), "b": torch.zeros(3)}, "opt": [1, {"m": torch.ones(4)}], "a/b": Point(1, 2)}
    save(tmp_path, state)
    path = tmp_path / "ckpt"
    assert difference({"model": state["model"]}, deeppart.load(path, keys="model/*")) is None
    assert difference({"a/b": Point(1, 2)}, deeppart.load(path, keys=["a~1b/*"])) is None
    assert deeppart.load(path, keys="a~1b/x") == {"a/b": {"x": 1}}, "a namedtuple needs all its fields"
    assert difference({"opt": [{"m": torch.ones(4)}]}, deeppart.load(path, keys=["opt/*/m"])) is None
    with pytest.raises(deeppart.StructureMismatchError, match=r"model/a\.w"):
        deeppart.load(path, keys="nothing*")


def test_objects_load_as_what_their_state_dict_gave(tmp_path: Path) -> None:
    state = {"box": Box({"a": Box([torch.ones(2), 3])}), "linear": torch.nn.Linear(2, 3)}
    loaded = both_ways_of_objects(tmp_path, state)
    assert type(loaded["linear"]) is OrderedDict and loaded["linear"]._metadata[""] == {"version": 1}  # type: ignore[attr-defined]


def both_ways_of_objects(directory: Path, state: Any) -> Any:
    save(directory, state)
    loaded = deeppart.load(directory / "ckpt")
    assert difference(state, loaded) is None
    return loaded
