"""A value that cannot be stored: the error names a conversion, and what that gives can be stored."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import functools
import io
import pathlib
import random
import re
import types
import uuid
import warnings
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.values import conversion


class Words(str):
    pass


class Settings(dict[str, int]):
    pass


class Numbers(list[int]):
    pass


class Pair(tuple[int, int]):
    pass


class Count(int):
    pass


class Ratio(float):
    pass


class Phase(complex):
    pass


class Blob(bytes):
    pass


class Options(argparse.Namespace):
    pass


class OnlyHalf:
    def state_dict(self) -> dict[str, int]:
        return {"a": 1}


def derived(kind: Any) -> Any:
    """A subclass of a type, which may have more to it."""
    return type("Derived", (kind,), {})


def known_as(module: str, name: str, base: Any = None) -> Any:
    """An object of a class by that name: conversions go by names, and nothing is imported for them."""
    bases = () if base is None else (Shown,)
    made = type(name, bases, {"__module__": module, "__qualname__": name, "to_dict": lambda self: {"a": 1}})
    return made()


class Shown(pathlib.PurePosixPath):
    pass


OmegaConf = types.SimpleNamespace(to_container=lambda config: config.to_dict())


#: What cannot be stored, and the conversions that the message names.
def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


CASES: list[tuple[Any, list[str]]] = [
    (known_as("omegaconf.dictconfig", "DictConfig"), ["OmegaConf.to_container(x)"]),
    (known_as("omegaconf.listconfig", "ListConfig"), ["OmegaConf.to_container(x)"]),
    (known_as("transformers.configuration_utils", "PretrainedConfig"), ["x.to_dict()"]),
    (known_as("transformers.configuration_utils", "PreTrainedConfig"), ["x.to_dict()"]),
    (known_as("some.library", "Path", pathlib.PurePosixPath("out")), ["str(x)"]),
    (Options(rate=0.1), ["dict(vars(x))"]),
    (derived(types.SimpleNamespace)(rate=0.1), ["dict(vars(x))"]),
    (derived(collections.deque)([1.5], maxlen=3), ["list(x)"]),
    ((n for n in (1, 2)), ["list(x)"]),
    ({"a": 1}.keys(), ["list(x)"]),
    ({"a": 1}.values(), ["list(x)"]),
    ({"a": 1}.items(), ["list(x)"]),
    (derived(set)({3, 1}), ["set(x)"]),
    (derived(frozenset)("ab"), ["frozenset(x)"]),
    (zoneinfo.ZoneInfo("UTC"), ["x.key"]),
    (derived(datetime.datetime)(2026, 1, 2, 3), ["x.isoformat()", "x.timestamp()"]),
    (derived(datetime.date)(2026, 1, 2), ["x.isoformat()"]),
    (derived(datetime.time)(3), ["x.isoformat()"]),
    (derived(datetime.timedelta)(1), ["x.total_seconds()"]),
    (derived(np.random.Generator)(np.random.MT19937(1)), ["x.bit_generator"]),
    (derived(np.random.RandomState)(1), ["x.get_state()"]),
    (np.ma.masked_array([1, 2], mask=[True, False]), ["x.data", "np.ma.getmaskarray(x)"]),
    (quietly(lambda: masked_tensor(torch.ones(2), torch.tensor([True, False]))), ["x.get_data()"]),
    (derived(random.Random)(1), ["x.getstate()"]),
    (random.SystemRandom(1), []),
    (np.dtype("f4"), ["str(x)"]),
    (derived(decimal.Decimal)("0.1"), ["str(x)"]),
    (derived(fractions.Fraction)(1, 3), ["str(x)"]),
    (derived(uuid.UUID)(int=5), ["str(x)"]),
    (derived(bytearray)(b"a"), ["bytes(x)"]),
    (derived(io.BytesIO)(b"a"), ["x.getvalue()"]),
    (memoryview(b"a"), ["bytes(x)"]),
    (collections.ChainMap({"a": 1}), ["dict(x)"]),
    (collections.UserDict(a=1), ["dict(x)"]),
    (types.MappingProxyType({"a": 1}), ["dict(x)"]),
    (derived(collections.defaultdict)(int, a=1), ["dict(x)"]),
    (Settings(a=1), ["dict(x)"]),
    (Numbers([1]), ["list(x)"]),
    (Pair((1, 2)), ["tuple(x)"]),
    (torch.ones(2, 2).max(dim=0), ["tuple(x)"]),
    (Words("a"), ["str(x)"]),
    (Blob(b"a"), ["bytes(x)"]),
    (Count(1), ["int(x)"]),
    (Ratio(1.5), ["float(x)"]),
    (Phase(1j), ["complex(x)"]),
    (OnlyHalf(), ["x.state_dict()"]),
    (lambda epoch: 0.9**epoch, []),
    (OnlyHalf().state_dict, []),
    (print, []),
    (functools.partial(print, 1), []),
    (OnlyHalf, []),
    (object(), []),
]


@pytest.mark.parametrize(("value", "conversions"), CASES, ids=lambda each: type(each).__name__)
def test_the_message_names_conversions_that_can_be_stored(value: Any, conversions: list[str]) -> None:
    with pytest.raises(UnsupportedLeafError, match="path v") as caught:
        flatten({"v": value})
    todo = str(caught.value.todo)
    assert todo == conversion(value)
    for expression in conversions:
        assert re.search(rf"(save|or|and) {re.escape(expression)}(\W|$)", todo), todo
        flatten({"v": eval(expression, {"x": value, "OmegaConf": OmegaConf, "np": np})})
    if not conversions:
        assert "leave it out" in todo or "convert the value" in todo


def test_nothing_is_advised_for_what_can_be_stored() -> None:
    """A row for one of these would be a lie; each has a type that some row could seem to cover."""
    storable = [torch.float32, torch.device("cpu"), torch.Size([1]), collections.Counter("a"), np.float64(1), True]
    generator: Any = np.random.RandomState(1).get_state()
    flat = flatten({"v": [*storable, collections.OrderedDict(a=1), {"a": (1,)}, generator]})
    assert [id(leaf) for leaf in flat.data] == [id(generator[1])]
