"""The arguments of a restore that choose: which are possible, what they cover, and names that differ by wrappers."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.errors import ConfigError
from deeppart.state.restore.request import request_of as request


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
