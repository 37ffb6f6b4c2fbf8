"""What shares memory in the live state was saved sharing it in the same way, or it is told what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import Alias
from deeppart.state.restore.leaf_matching import check_ties
from deeppart.state.restore.target import Target
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.paths import ExactPath, exact
from tests.unit.state.restore.mismatches import Case, check_refused, ones, zeros
from tests.unit.state.saved_states import structure_of, target_of

CASES: dict[str, Callable[[], Case]] = {
    "live tie": lambda: ([ones(3), ones(3)], [zeros(3)] * 2, StructureMismatchError, "bad/1", ["bad/1", "bad/0"]),
    "live view": lambda: live_view(lambda base: base[2:5]),
    "live tie of modules": lambda: (tied(False), tied(True), StructureMismatchError, "bad/", ["1.weight", "0.weight"]),
    "tied otherwise": lambda: tied_otherwise(lambda base: base[::2], lambda base: base[:4]),
    "tied at another place": lambda: tied_otherwise(lambda base: base[1:5], lambda base: base[2:6]),
    "tied transposed": lambda: tied_otherwise(lambda base: base.view(2, 4).T, lambda base: base.view(4, 2)),
    "tied conjugate": lambda: tied_conjugate(),
    "tied, and conjugate here": lambda: conjugate_here(lambda base: (base, base), lambda base: (base, base.conj())),
    "tied, and negative here": lambda: conjugate_here(
        lambda base: (base.imag, base.imag), lambda base: (base.imag, base.conj().imag)),
    "tied, and overlapping here": lambda: overlapping_here(),
}  # fmt: skip


def tied(yes: bool) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    if yes:
        model[1].weight = model[0].weight
    return model


def live_view(view: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    base = zeros(8)
    return [ones(8), view(ones(8)).clone()], [base, view(base)], StructureMismatchError, "bad/1", ["bad/1", "bad/0"]


def tied_otherwise(saved: Callable[[Any], Any], live: Callable[[Any], Any]) -> Case:
    one, other = torch.arange(8.0), zeros(8)
    return [one, saved(one)], [other, live(other)], StructureMismatchError, "bad/1", ["in another way"]


def tied_conjugate() -> Case:
    base = zeros(3, dtype=torch.complex64)
    saved = [ones(3, dtype=torch.complex64), 2j * ones(3, dtype=torch.complex64)]
    return saved, [base, base.conj()], StructureMismatchError, "bad/1", ["bad/0"]


def conjugate_here(saved: Callable[[Any], tuple[Any, Any]], live: Callable[[Any], tuple[Any, Any]]) -> Case:
    base = torch.tensor([1 + 2j, 3 + 4j])
    return list(saved(base)), list(live(zeros(2, dtype=torch.complex64))), StructureMismatchError, "bad/1", ["bad/0"]


def overlapping_here() -> Case:
    saved, base = torch.tensor([1.0, 2.0]), zeros(3)
    return [saved, saved], [base[:2], base[1:]], StructureMismatchError, "bad/1", ["bad/0"]


@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_named_and_touches_nothing(tmp_path: Path, name: str) -> None:
    check_refused(tmp_path, CASES[name]())


# --- what is found of each tie ----------------------------------------------------------------------------------------


def looked_at(saved: Any, live: Any, **changes: Any) -> Target:
    """Ties of a live state that has the saved one's leaves; ``changes`` of the saved structure."""
    target = target_of(replace(structure_of(saved), **changes))
    flat = flatten(live, live=True)
    check_ties(target, flat, {index: index for index in range(len(flat.arrays))})
    return target


def pair(view: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    base = torch.zeros(4, 8)
    return {"a": base, "b": view(base)}


ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the same": lambda base: base,
    "rows": lambda base: base[1:3],
    "columns": lambda base: base[:, 2:5],
    "every other": lambda base: base[:, ::2],
    "turned": lambda base: base.t(),
    "an element": lambda base: base[2, 3],
    "another dtype": lambda base: base[1].view(torch.int32),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_tie_as_it_was_saved_is_one(name: str) -> None:
    target = looked_at(pair(ALIKE[name]), pair(ALIKE[name]))
    assert target.tied == {1} and not target.mistied


@pytest.mark.parametrize("name", ALIKE)
def test_a_tie_that_was_not_saved_is_told_with_what_it_is_a_view_of(name: str) -> None:
    live = pair(ALIKE[name])
    target = looked_at({"a": live["a"].clone(), "b": live["b"].clone()}, live)
    ((index, (alias, error)),) = target.mistied.items()
    assert (index, alias.owner, alias.offset) == (1, 0, live["b"].storage_offset() * 4)
    assert not target.tied and "b lies inside a" in str(error.found)


def test_of_a_dimension_of_one_element_the_step_does_not_matter() -> None:
    def row(step: int) -> dict[str, torch.Tensor]:
        base = torch.zeros(8)
        return {"a": base, "b": torch.as_strided(base, (1, 8), (step, 1))}

    assert looked_at(row(1), row(7)).tied == {1}
    assert looked_at(row(1), row(7), aliases={1: Alias(0, 0, (99, 1))}).tied == {1}, "whatever a file says of it"
    assert looked_at(row(1), row(7), aliases={1: Alias(0, 0, (99, 0))}).mistied


def test_two_views_of_a_third_leaf_may_be_views_of_each_other_here() -> None:
    """That what they are views of has other memory here does not matter: both get its bytes."""

    def saved(step: int) -> dict[str, torch.Tensor]:
        base = torch.zeros(20)
        return {"all": base, "one": base[4 : 4 + 8 * step : step], "two": base[4 + 2 * step : 4 + 5 * step : step]}

    one = torch.zeros(8)
    live = {"all": torch.zeros(20), "one": one, "two": one[2:5]}
    assert looked_at(saved(1), live).tied == {2}
    other = looked_at(saved(2), live)
    assert other.mistied[2][0] == Alias(1, 8, (1,)) and not other.tied


def test_leaves_that_get_nothing_may_be_tied_to_anything() -> None:
    base = torch.zeros(4)
    target, flat = target_of(structure_of({"a": torch.zeros(4)})), flatten({"a": base, "b": base}, live=True)
    check_ties(target, flat, {0: 0})
    check_ties(target, flat, {1: 0})
    assert not target.tied and not target.mistied


def test_one_that_reads_otherwise_than_the_other_is_refused_at_once() -> None:
    """No rank can have it as it was saved: one memory cannot read in two ways."""
    base = torch.zeros(3, dtype=torch.complex64)
    with pytest.raises(StructureMismatchError, match="separate leaves"):
        looked_at({"a": base, "b": base.clone()}, {"a": base, "b": base.conj()})


BEST: ExactPath = exact(("best",))


@pytest.mark.parametrize("with_objects", [False, True])
def test_what_is_rank_0s_is_made_anew_rather_than_tied_unless_it_has_objects(with_objects: bool) -> None:
    base = torch.zeros(4)
    structure = replace(structure_of({"best": base.clone(), "w": base.clone()}), rank0=frozenset({BEST}))
    target, flat = target_of(structure), flatten({"best": base, "w": base}, live=True)
    target.with_objects |= {BEST} if with_objects else set()
    check_ties(target, flat, {0: 0, 1: 1})
    assert target.replaced == (set() if with_objects else {BEST})
    assert not target.tied and not target.mistied


def test_what_was_saved_apart_from_one_memory_holds_the_same_bytes() -> None:
    base = torch.zeros(4)
    saved = {"a": base.clone(), "own": base.clone()}
    live = {"a": base, "own": base}
    assert looked_at(saved, live).mistied
    found = looked_at(saved, live, shared=1, has_apart=True)
    assert not found.mistied and not found.tied
