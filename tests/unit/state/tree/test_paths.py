"""Paths: keys that are told apart, in an order of their own, and shown so that each leaf has a name of its own."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.paths.keys import ROOT, canonical_order, exact, id_key, readable
from deeppart.state.values import decode_value, encode_key

HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300
NAMES: list[tuple[tuple[Any, ...], str]] = [
    ((), ROOT),
    (("a",), "a"),
    (("a", "b", 0), "a/b/0"),
    (("a/b",), "a~1b"),
    (("a~1b",), "a~01b"),
    (("~", "/", "~/"), "~0/~1/~0~1"),
    (("",), ROOT),
    (("", ""), "/"),
    ((1, True, None, 1.5), "1/True/None/1.5"),
    (((1, "x/y"),), "(1, 'x~1y')"),
    ((b"x",), "b'x'"),
    (("layer.ä", "名前"), "layer.ä/名前"),
    (("a", 10**5000), f'a/["int", "{10**5000:x}"]'),
    (("\ud800",), "\\ud800"),
    (("ä\udfff/",), "ä\\udfff~1"),
    ((torch.float32, np.int8(3)), "torch.float32/3"),
]


@pytest.mark.parametrize(("path", "text"), NAMES, ids=[repr(text) for _, text in NAMES])
def test_a_path_as_text(path: tuple[Any, ...], text: str) -> None:
    assert readable(path) == text
    text.encode()


def test_no_two_paths_of_texts_have_one_name() -> None:
    """Components can be told apart again, whatever is in them."""
    keys = ["a", "~", "/", "~1", "a/b", "0"]
    paths = [path for length in (1, 2, 3) for path in itertools.product(keys, repeat=length)]
    assert len({readable(path) for path in paths}) == len(paths)


def test_keys_that_are_equal_and_of_other_types_are_told_apart() -> None:
    keys = [1, True, 1.0, np.int64(1), np.float32(1), 1 + 0j]
    assert len({id_key(key) for key in keys}) == len(keys)
    assert exact((1, "a")) == exact((1, "a")) != exact((True, "a"))
    assert exact(()) == ()


@pytest.mark.parametrize("kind", [np.longlong, np.ulonglong, np.int64, np.uint64, np.intp, np.uintp])
def test_keys_that_a_file_does_not_tell_apart_are_one(kind: Any) -> None:
    """numpy has two types for integers of one width, and writes one name for both."""
    key = kind(5)
    stored = decode_value(encode_key(key, "here"), "here")
    assert id_key(stored) == id_key(key)
    assert id_key(key) != id_key(5)


# --- the order --------------------------------------------------------------------------------------------------------

ORDERED: list[list[Any]] = [
    ["", "10", "9", "B", "a", "ä"],
    [-5, 2, 9, 10, 100, HUGE],
    [None, True, b"z", 1.5, 10, 9, "10", "9", (1, "x")],
    [np.float32(2), 1, np.int8(3)],
    [],
    [-HUGE, HUGE, "x"],
]


@pytest.mark.parametrize("keys", ORDERED, ids=range(len(ORDERED)))
def test_the_order_is_the_documented_one_whatever_the_dict_has(keys: list[Any]) -> None:
    """docs/format.md: all strings or all integers by value, others by the name of their type, then by ``repr``."""
    for seed in range(10):
        shuffled = random.Random(seed).sample(keys, len(keys))
        assert list(map(id_key, canonical_order(dict.fromkeys(shuffled)))) == list(map(id_key, keys))
