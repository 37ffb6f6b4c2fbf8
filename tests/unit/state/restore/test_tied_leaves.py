"""What shares memory in the live state was saved sharing it in the same way, or it is told what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import StructureMismatchError
from tests.unit.state.restore.mismatches import Case, check_refused, ones, zeros

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
