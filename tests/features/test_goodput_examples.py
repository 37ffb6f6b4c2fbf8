"""The examples in the docstrings of what is about goodput say what happens."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = (
    *(f"deeppart.plan.goodput.{name}" for name in ("model", "optimum", "fitting", "advice")),
    "deeppart.elastic.profile",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_say_what_happens(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and not found.failed
