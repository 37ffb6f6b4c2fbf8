"""Two checkpoints: what counts as equal, what is found, and that all of both is read and checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, RestoreError
from deeppart.offline.diff import Diff, Difference, ElementDifference, Tolerance, compare, compare_arrays, same_small
from deeppart.offline.elements import PIECE_ELEMENTS
from deeppart.state.tensors.leaves import TORCH_DTYPES, leaf_type
from tests.unit.cli_support import flip, forge, make_state, part_path, save, save_states
from tests.unit.sharded_states import rows
from tests.unit.sharded_states import save as save_ranks


def found(a: Path, b: Path | None = None, **how: Any) -> Diff:
    return compare(a, b or a, **({} if b else {"steps": (1, 2)}) | how)


def kinds(diff: Diff) -> list[tuple[str, str]]:
    return [(each.path, each.kind) for each in diff.differences]


def test_a_copy_is_equal_and_everything_was_compared(tmp_path: Path) -> None:
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1, compression="zstd")
    told: list[tuple[int, int]] = []
    diff = found(tmp_path / "a", tmp_path / "b", progress=lambda done, total: told.append((done, total)))
    assert diff.differences == () and diff.problems == ()
    assert (diff.leaves, diff.values) == (8, 7)
    assert told[-1] == (diff.nbytes, diff.nbytes) and diff.nbytes == 2 * 1_280_000 + 4_800_000 + 948


def test_every_leaf_that_changed_is_named_and_no_other(tmp_path: Path) -> None:
    state, changed = make_state(), make_state()
    changed["model"]["bias"][3] += 1
    changed["moments"][0][7, 9] = float("nan")
    changed["noise"][2, 4] = -changed["noise"][2, 4]
    changed["rate"], changed["a/b"] = 2e-3, (None, "texts", torch.bfloat16)
    diff = found(save_states(tmp_path, state, changed))
    assert kinds(diff) == [
        ("rate", "value"),
        ("a~1b/1", "value"),
        ("model/bias", "elements"),
        ("moments/0", "elements"),
        ("noise", "elements"),
    ]
    detail: Any = diff.differences[3].detail
    assert (detail.differing, detail.place, detail.nans_only_b) == (1, (7, 9), 1)
    assert diff.differences[0] == Difference("rate", None, "value", 1e-3, 2e-3)


def test_other_types_and_what_only_one_has(tmp_path: Path) -> None:
    a = {"x": torch.zeros(3), "s": torch.zeros(2), "n": {"p": torch.zeros(2), "q": [1, 2]}, "k": 1, 1: "int", "d": {}}
    b = {"x": torch.zeros(3).half(), "s": torch.zeros(2, 1), "k": torch.zeros(1), True: "bool", "d": [], "e": {}}
    diff = found(save_states(tmp_path, a, b))
    assert sorted(
        (each.path, each.kind, str(each.a), str(each.b)) for each in diff.differences if "only" not in each.kind
    ) == [
        ("d", "type", "dict of 0", "list of 0"),
        ("k", "type", "int 1", "float32[1]"),
        ("s", "type", "float32[2]", "float32[2, 1]"),
        ("x", "type", "float32[3]", "float16[3]"),
    ]
    alone = {(each.path, each.kind): each.a or each.b for each in diff.differences if "only" in each.kind}
    assert alone.keys() == {("n", "only_a"), ("1", "only_a"), ("True", "only_b"), ("e", "only_b")}
    whole = alone["n", "only_a"]
    assert (whole.text, whole.leaves, whole.values, whole.nbytes) == ("dict of 2", 1, 2, 8)


def test_ties(tmp_path: Path) -> None:
    w = torch.arange(6.0)
    diff = found(save_states(tmp_path, {"a": w, "b": w}, {"a": w, "b": w.clone()}))
    ((tie,), leaves) = diff.differences, diff.leaves
    assert tie.kind == "tie" and leaves == 2 and {tie.a, tie.b} == {None, "a" if tie.path == "b" else "b"}


def test_tolerance_holds_for_values_and_elements(tmp_path: Path) -> None:
    a = {"x": torch.tensor([1.0, 0.0]), "v": 1.0, "same": torch.ones(2)}
    b = {"x": torch.tensor([1.0 + 2**-20, -0.0]), "v": 1.0 + 1e-9, "same": torch.ones(2)}
    root = save_states(tmp_path, a, b)
    assert len(found(root).differences) == 2
    assert kinds(found(root, tolerance=Tolerance(0.0, 0.0))) == [("v", "value"), ("x", "elements")]
    diff = found(root, tolerance=Tolerance(1e-6, 0.0))
    assert (diff.differences, diff.within) == ((), 1)


def test_own_leaves_are_compared_rank_by_rank(tmp_path: Path) -> None:
    forge(tmp_path / "a", 5)
    forge(tmp_path / "b", 5, ranks=2)
    diff = found(tmp_path / "a", tmp_path / "b")
    assert [(each.path, each.rank, each.kind) for each in diff.differences] == [
        ("rng", 2, "only_a"),
        ("position", 2, "only_a"),
    ]
    assert (diff.leaves, diff.values) == (2 + 2, 2)
    assert found(tmp_path / "a", tmp_path / "b", rank=1).differences == ()
    with pytest.raises(RestoreError, match="no rank 2"):
        found(tmp_path / "a", tmp_path / "b", rank=2)
    assert found(tmp_path / "a", tmp_path / "a").leaves == 2 + 3


def test_one_rank_that_differs_is_not_missed(tmp_path: Path) -> None:
    states = [{"shared": torch.arange(4), "rng": torch.full((3,), rank), "n": rank} for rank in range(3)]
    others: list[Any] = [{**state, "rng": torch.full((3,), rank)} for rank, state in enumerate(states)]
    others[2]["rng"][1] = 7
    others[1]["n"] = 5
    own: Any = {"replicated": {"rng": "none", "n": "none"}}
    save_ranks(tmp_path / "a", states, **own)
    save_ranks(tmp_path / "b", others, **own)
    diff = found(tmp_path / "a", tmp_path / "b")
    assert [(each.path, each.rank, each.kind) for each in diff.differences] == [
        ("n", 1, "value"),
        ("rng", 2, "elements"),
    ]
    assert found(tmp_path / "a", tmp_path / "b", rank=0).differences == ()
    # What one job held on each rank, and another alike on all: each rank's is compared with that.
    save_ranks(tmp_path / "c", [states[0]] * 3)
    diff = found(tmp_path / "a", tmp_path / "c")
    assert {(each.path, each.rank) for each in diff.differences} == {("n", 1), ("n", 2), ("rng", 1), ("rng", 2)}


def test_how_a_tensor_was_sharded_does_not_count(tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    for ranks in (2, 3):
        save_ranks(tmp_path / f"{ranks}", [{"w": rows(whole, rank, ranks)} for rank in range(ranks)])
    save_states(tmp_path / "plain", {"w": whole})
    assert found(tmp_path / "2", tmp_path / "3").differences == ()
    assert found(tmp_path / "3", tmp_path / "plain").differences == ()
    other = whole.clone()
    other[5, 9] = 0.5
    save_ranks(tmp_path / "other", [{"w": rows(other, rank, 2)} for rank in range(2)])
    ((each,)) = found(tmp_path / "3", tmp_path / "other").differences
    detail: Any = each.detail
    assert (each.path, detail.differing, detail.place, detail.b) == ("w", 1, (5, 9), 0.5)


def test_damage_is_no_difference(tmp_path: Path) -> None:
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1)
    flip(part_path(tmp_path / "b", 1), 4096 + 1000)  # in a leaf that is equal otherwise
    diff = found(tmp_path / "a", tmp_path / "b")
    assert diff.differences == () and 1 <= len(diff.problems) <= 2
    assert all(line.startswith("B: ") and "digest of a chunk" in line for line in diff.problems)
    assert diff.leaves + len(diff.problems) == 8
    flip(part_path(tmp_path / "a", 1), part_path(tmp_path / "a", 1).stat().st_size - 3)
    with pytest.raises(CorruptFileError):
        found(tmp_path / "a", tmp_path / "b")


def test_equal_digests_are_not_believed(tmp_path: Path) -> None:
    """Both indexes say the same of what is not the same any more."""
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1)
    size = part_path(tmp_path / "b", 1).stat().st_size
    for offset in range(5000, size - 40_000, size // 6):
        flip(part_path(tmp_path / "b", 1), offset)
    assert len(found(tmp_path / "a", tmp_path / "b").problems) >= 4


def test_items_of_small_values_are_compared_by_their_keys(tmp_path: Path) -> None:
    a: dict[Any, Any] = {f"k{i}": {"x": i, "y": [0.5]} for i in range(300)} | {1: "a"}
    b = {**dict(reversed(a.items())), "k7": {"x": 7, "y": [0.25]}, "more": {"x": 0, "y": [0.0]}}
    del b[1]
    b[True] = "a"
    diff = found(save_states(tmp_path, {"run": a}, {"run": b}))
    assert kinds(diff) == [("run/k7/y/0", "value"), ("run/1", "only_a"), ("run/more", "only_b"), ("run/True", "only_b")]


# --- elements ---------------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
SAME_NUMBER = Tolerance(0.0, 0.0)


def compared(a: Any, b: Any, tolerance: Tolerance | None = None) -> ElementDifference:
    found = compare_arrays(a, b, leaf_type(a), tolerance)
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_one_bit_of_any_type_is_seen_in_its_place(name: str) -> None:
    octets = torch.arange(5 * 7 * 16, dtype=torch.int32).to(torch.uint8)
    a = octets.clone().view(TORCH_DTYPES[name]) if name != "bool" else (octets % 2).view(torch.bool)
    assert compare_arrays(a, a.clone(), leaf_type(a), None) is None
    other = a.view(torch.uint8).clone()
    place = 3 * a.element_size()
    other[place] ^= 1
    found = compared(a, other.view(a.dtype))
    assert (found.differing, found.unlike, found.place) == (1, 1, (3,))


def test_bits_alone() -> None:
    a = torch.tensor([0.0, NAN, 1.0])
    b = torch.tensor([-0.0, 0.0, 1.0])
    b.view(torch.int32)[1] = 0x7FC12345
    found = compared(a, b)
    assert (found.differing, found.unlike, found.equal_numbers) == (2, 2, 2)
    assert (found.nans_only_a, found.nans_only_b, found.largest_absolute) == (0, 0, None)
    assert found.place == (0,) and math.copysign(1.0, found.b) == -1.0
    assert compared(a, b, SAME_NUMBER).differing == 0


def test_nan_on_one_side_and_infinities() -> None:
    a = torch.tensor([NAN, 1.0, INF, 1.0, 5.0])
    b = torch.tensor([1.0, NAN, -INF, INF, 5.0])
    found = compared(a, b)
    assert (found.differing, found.nans_only_a, found.nans_only_b) == (4, 1, 1)
    assert (found.largest_absolute, found.largest_relative) == (INF, INF)
    for tolerance in (SAME_NUMBER, Tolerance(0.5, 1e30)):
        assert compared(a, b, tolerance).differing == 4
    only_nan = compared(a[:2], b[:2])
    assert only_nan.place == (0,) and math.isnan(only_nan.a) and only_nan.b == 1.0
    assert only_nan.largest_absolute is None


def test_the_furthest_apart_is_shown_though_pieces_and_nans_come_first() -> None:
    a = torch.zeros(3, PIECE_ELEMENTS)
    b = a.clone()
    b[0, 0], b[1, 7], b[2, 9] = NAN, 3.0, -2.0
    found = compared(a, b)
    assert (found.place, found.b, found.largest_absolute) == ((1, 7), 3.0, 3.0)
    assert (found.differing, found.elements) == (3, 3 * PIECE_ELEMENTS)


def test_a_tolerance_is_of_the_larger_of_the_two() -> None:
    a, b = torch.tensor([100.0, 1.0, 0.0]), torch.tensor([101.0, 1.5, 1e-3])
    assert compared(a, b, Tolerance(0.01, 0.0)).differing == 2
    assert compared(a, b, Tolerance(0.01, 1e-3)).differing == 1
    assert compared(b, a, Tolerance(0.01, 1e-3)).differing == 1
    within = compared(a, b, Tolerance(0.5, 1e-3))
    assert (within.differing, within.unlike, within.largest_absolute) == (0, 3, None)


ANY = Tolerance(1.0, 1e300)


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "close"),
    [
        (0.0, -0.0, SAME_NUMBER, True),
        (1.0, 1.0 + 2**-52, SAME_NUMBER, False),
        (100.0, 101.0, Tolerance(0.01, 0.0), True),
        (101.0, 100.0, Tolerance(0.0, 0.5), False),
        (NAN, 1.0, ANY, False),
        (float("inf"), 1.0, ANY, False),
        (float("inf"), -float("inf"), ANY, False),
        (2**53, 2**53 + 1, SAME_NUMBER, False),
        (1 << 4000, (1 << 4000) + 1, Tolerance(0.0, 1.0), True),
        (1 << 4000, 1 << 4001, Tolerance(0.1, 0.0), False),
        (True, False, ANY, False),
        (1, 1.0, ANY, False),
        ("a", "b", ANY, False),
        (1 + 1j, 1 + 1.5j, Tolerance(0.0, 0.5), True),
        (np.float32(1), np.float32(1.5), Tolerance(0.0, 0.5), True),
        (np.float32(1), np.float64(1), ANY, False),
        (np.longdouble(1), np.longdouble(2), Tolerance(0.0, 0.5), False),
        (np.uint64(2**64 - 1), np.uint64(0), Tolerance(0.0, 1.0), False),
        (np.datetime64(1, "s"), np.datetime64(2, "s"), ANY, False),
    ],
)
def test_tolerance(a: Any, b: Any, tolerance: Tolerance, close: bool) -> None:
    assert same_small(a, b, tolerance) is close and same_small(b, a, tolerance) is close
