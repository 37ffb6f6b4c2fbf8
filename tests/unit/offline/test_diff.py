"""Two checkpoints: what counts as equal, what is found, and that all of both is read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError
from deeppart.offline.diff import Diff, Difference, ElementDifference, Tolerance, compare, compare_arrays, same_small
from deeppart.state.tensors.leaves import TORCH_DTYPES, leaf_type
from tests.unit.cli_support import flip, make_state, part_path, save, save_states


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
