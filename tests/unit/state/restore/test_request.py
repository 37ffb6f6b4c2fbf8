"""The arguments of a restore that choose: which are possible, what they cover, and names that differ by wrappers."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.errors import ConfigError, StateError
from deeppart.state.restore.request import MISSING, UNEXPECTED, Request, aligned
from deeppart.state.restore.request import request_of as request


def test_nothing_asked_for_is_the_default() -> None:
    assert request().is_default and request().digest() == 0
    assert request(strict=False) == Request(strict=False)


def test_ranks_that_ask_for_the_same_have_one_digest() -> None:
    assert request(keys=["a", "b"]).digest() == request(keys=("b", "a", "b")).digest()
    digests = {request(keys="a").digest(), request(exclude="a").digest(), request(cast=True).digest(), 0}
    assert len(digests) == 4 and all(0 <= digest < 1 << 63 for digest in digests)
    functions = {request(strict=each).digest() for each in (lambda *_: True, lambda *_: False)}
    assert len(functions) == 1 and functions.isdisjoint({0, request(strict=False).digest()})


def test_a_function_decides_for_each_difference() -> None:
    of_head = request(strict=lambda path, difference: path.startswith("head/") and difference == MISSING)
    assert of_head.accepts(("head", "w"), MISSING) and not of_head.accepts(("head", "w"), UNEXPECTED)
    assert not request().accepts(("a",), MISSING) and request(strict=False).accepts(("a",), UNEXPECTED)
    with pytest.raises(StateError, match="given as strict failed") as caught:
        request(strict=lambda path: True).accepts(  # type: ignore[misc,arg-type]
            ("a", "b"), MISSING
        )
    assert caught.value.where == "path a/b"


@pytest.mark.parametrize(
    "given",
    [
        {"keys": []},
        {"keys": ""},
        {"keys": [1]},
        {"keys": {"a": "b"}},
        {"keys": b"a"},
        {"exclude": [None]},
        {"strict": "no"},
        {"strict": None},
        {"cast": 1},
        {"rename": [("a", "b")]},
        {"rename": {"a": 1}},
        {"rename": {"": "b"}},
        {"rename": {"a": ""}},
        {"rename": {"a": "*"}},  # nothing stands for it
        {"rename": {"a": "b/c"}},  # another container
        {"rename": {"a/b": "c/b"}},
    ],
    ids=repr,
)
def test_impossible_arguments_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"impossible value for {next(iter(given))}") as caught:
        request(**given)
    assert caught.value.expected and caught.value.found


@pytest.mark.parametrize(
    ("rename", "todo"),
    [
        ({"model/net/*": "model/backbone/*"}, {"model/net": "model/backbone"}),
        ({"model/net/w.*": "all/net/v.*"}, {"model": "all", "all/net/w.*": "all/net/v.*"}),
        ({"model/net/*": "model/*"}, "nothing moves to another depth"),
    ],
)
def test_a_rule_that_names_another_container_is_told_how_to_write_it(rename: dict[str, str], todo: Any) -> None:
    with pytest.raises(ConfigError, match="impossible value for rename") as caught:
        request(rename=rename)
    text = f"rename={todo}" if isinstance(todo, dict) else todo
    assert text in str(caught.value)
    if isinstance(todo, dict):
        assert request(rename=todo).rules == tuple(todo.items())


@pytest.mark.parametrize(
    ("rename", "path", "key", "expected"),
    [
        ({"module.*": "*"}, ("model",), "module.0.weight", "0.weight"),
        ({"module.*": "*"}, ("model",), "0.module.weight", "0.module.weight"),
        ({"*.gamma": "*.weight"}, (), "norm.gamma", "norm.weight"),
        ({"h.*.attn.*": "layers.*.self.*"}, (), "h.3.attn.q", "layers.3.self.q"),
        ({"model": "net"}, (), "model", "net"),
        ({"model": "net"}, ("model",), "model", "net"),
        ({"model/encoder.*": "model/backbone.*"}, ("model",), "encoder.0", "backbone.0"),
        ({"model/encoder.*": "model/backbone.*"}, ("ema",), "encoder.0", "encoder.0"),
        ({"*/w": "*/v"}, ("a",), "w", "v"),
        ({"*/w": "*/v"}, ("a", "b"), "w", "w"),
        ({"a~1b": "c~1d"}, (), "a/b", "c/d"),
        ({"1": "2"}, (), 1, 1),  # a number is no name
        ({"a": "b", "*": "c"}, (), "a", "b"),  # the first rule that matches
        ({"[ab]": "c"}, (), "a", "a"),  # nothing but `*` is special
        ({"[ab]": "c"}, (), "[ab]", "c"),
    ],
)
def test_rules_of_rename(rename: dict[str, str], path: tuple[str, ...], key: Any, expected: Any) -> None:
    found, rule = request(rename=rename).renamed(path, key)
    assert found == expected and (rule is None) == (found == key)


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
