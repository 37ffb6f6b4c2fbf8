"""Names that differ by wrappers alone."""

from __future__ import annotations

import pytest

from deeppart.state.restore.request import aligned

A, B = "a.weight", "b.0.bias"


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        ([f"module.{A}", f"module.{B}"], [A, B]),
        ([A, B], [f"_orig_mod.module.{A}", f"_orig_mod.module.{B}"]),
        ([A, B], [A, "b._orig_mod.0.bias"]),
        ([A, "b.module.0.bias"], ["a._checkpoint_wrapped_module.weight", B]),
    ],
)
def test_every_name_has_its_counterpart(saved: list[str], live: list[str]) -> None:
    found = aligned(saved, live, whole=True)
    assert [found.get(name, name) for name in saved] == live


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        ([A, B], [A, B]),
        ([A, B], [B, A]),
        ([f"module.{A}", A], [A, B]),  # two names of one
        ([A, B], [f"module.{A}", A]),
        ([f"module.{A}"], [A, B]),  # another model
        ([f"net.{A}"], [A]),
        ([f"module.{A}", 1], [A, 1]),
        ([], [A]),
        ([A], []),
    ],
)
def test_anything_else_is_left_as_it_is(saved: list[str], live: list[str]) -> None:
    assert aligned(saved, live, whole=True) == {}


def test_of_models_that_differ_the_names_that_both_have() -> None:
    saved, live = [f"module.{A}", f"module.{B}", "module.old"], [A, B, "head.weight"]
    assert aligned(saved, live, whole=False) == {f"module.{A}": A, f"module.{B}": B}
    assert aligned([A, "old"], [A, "new"], whole=False) == {}
