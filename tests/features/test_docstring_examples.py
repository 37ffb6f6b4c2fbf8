"""Every public class, and every public function that saves or restores, has a short example that is run here.

So are the examples of what is about goodput, where these are.
"""

from __future__ import annotations

import doctest
import inspect
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import deeppart
import deeppart.elastic
import deeppart.errors
import deeppart.partition
import deeppart.types

PUBLIC = (deeppart, deeppart.elastic, deeppart.errors, deeppart.partition, deeppart.types)
MOST_LINES = 8


def public(kind: Any) -> Iterator[tuple[str, Any]]:
    for module in PUBLIC:
        for name in module.__all__:
            thing = getattr(module, name)
            if kind(thing):
                yield f"{module.__name__}.{name}", thing


def says_nothing_new(thing: type) -> bool:
    """An error or warning that is caught and read like its base: what the base's example shows is all there is."""
    return (
        issubclass(thing, Exception) and thing.__base__ is not None and not {"__init__", "__str__"} & set(vars(thing))
    )


def is_protocol(thing: type) -> bool:
    """What others are: theirs are the examples."""
    return getattr(thing, "_is_protocol", False)


CLASSES = dict(public(inspect.isclass))
BY_ITSELF = {name for name, thing in CLASSES.items() if not says_nothing_new(thing) and not is_protocol(thing)}
BASES = {"deeppart.DeeppartError", "deeppart.DeeppartWarning"}
FUNCTIONS = dict(public(inspect.isfunction))
#: Every script calls the first ones.
WITH_EXAMPLES = {
    *("deeppart.checkpoint", "deeppart.restore", "deeppart.load"),
    *(name for name, thing in FUNCTIONS.items() if ">>>" in (thing.__doc__ or "")),
}
ABOUT_GOODPUT = (
    *(f"deeppart.elastic.goodput.{name}" for name in ("model", "optimum", "fitting", "advice")),
    "deeppart.elastic.profile",
)


def examples_of(name: str, thing: Any) -> list[doctest.DocTest]:
    """Of the docstring alone, and not of what the class has from elsewhere."""
    found = doctest.DocTestParser().get_doctest(inspect.cleandoc(thing.__doc__ or ""), {}, name, None, 0)
    return [found] if found.examples else []


def failures_of(test: doctest.DocTest) -> str:
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(test, out=said.append, clear_globs=False)
    return "".join(said)


@pytest.mark.parametrize("name", sorted(BY_ITSELF | BASES | WITH_EXAMPLES))
def test_the_example_is_there_and_short_and_says_what_happens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tests = examples_of(name, (CLASSES | FUNCTIONS)[name])
    assert tests, f"{name} has no example in its docstring"
    with warnings.catch_warnings():
        for test in tests:
            lines = sum(example.source.count("\n") for example in test.examples)
            assert lines <= MOST_LINES, f"{name}: its example has {lines} lines"
            assert not (found := failures_of(test)), found


@pytest.mark.parametrize("name", ABOUT_GOODPUT)
def test_the_examples_of_a_module_say_what_happens(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and not found.failed
