"""Tensors that are made of others are taken apart into what shares their memory; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.composites import take_apart
from tests.tensor_kinds import KINDS, Described, by_channels, coo, csr, jagged, quantized, two

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


def test_components_share_the_memory_of_the_tensor() -> None:
    cases: list[tuple[torch.Tensor, str, Callable[[Any], torch.Tensor]]] = [
        (coo(), "values", lambda x: x._values()),
        (csr(), "values", lambda x: x.values()),
        (quantized(), "ints", lambda x: x.int_repr()),
        (quantized().t(), "ints", lambda x: x.int_repr()),
        (by_channels(), "ints", lambda x: x.int_repr()),
        (jagged(), "values", lambda x: x.values()),
        (two(), "a", lambda x: x.a),
    ]
    for tensor, key, read in cases:
        parts = take_apart(tensor, "x")
        assert parts is not None
        parts.items[key].fill_(7)
        assert (read(tensor) == 7).all()


def test_what_is_plain_or_not_known_has_none() -> None:
    packed = torch.quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2)
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    class Tagged(torch.Tensor):
        pass

    for tensor in (
        torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.ones(3, device="meta"), torch.ones(3).to_mkldnn(),
        packed, strided, torch.ones(3).as_subclass(Tagged), torch.nn.UninitializedParameter(),
        torch.eye(3).to_sparse().to("meta"),
    ):  # fmt: skip
        assert take_apart(tensor, "x") is None


def test_a_context_is_made_of_small_values() -> None:
    parts = take_apart(KINDS["subclass, with context"](1), "x")
    assert parts is not None
    name = "tests.tensor_kinds"
    settings = ("dataclass", f"{name}.Settings", {"size": 3, "colour": ("enum", f"{name}.Colour", "RED")})
    assert parts.items["context"] == {
        "shape": torch.Size([3]),
        "dtype": torch.float32,
        "context": {"s": settings, "sizes": [1, (2, torch.Size([3]))], "dtype": torch.int8},
    }


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (torch.ones(1), "torch.Tensor"),
        ({"a": [object()]}, "builtins.object"),
        ({(1, 2): 3}, "keys"),
        (endless(), "deeply"),
    ],
)
def test_a_context_of_anything_else_is_refused(context: Any, said: str) -> None:
    with pytest.raises(UnsupportedLeafError, match="path x/y") as caught:
        take_apart(Described(torch.ones(2), context), "x/y")
    assert (
        said in str(caught.value)
        and "Described" in str(caught.value)
        and "to do: save the tensors" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [(["b"], "AttributeError"), (["shape"], "a torch.Size|a Size"), ([], "0 components"), (["context"], "'context'")],
)
def test_names_that_lead_to_no_tensors_are_refused(names: list[str], said: str) -> None:
    class Odd(Described):
        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return names, None

    odd = torch.Tensor._make_wrapper_subclass(Odd, (2,))
    odd.context = torch.ones(2)
    with pytest.raises(UnsupportedLeafError, match=said):
        take_apart(odd, "x")


def test_the_result_of_a_collective_is_not_taken_for_what_it_wraps() -> None:
    class Waiting(Described):
        def trigger_wait(self) -> torch.Tensor:
            return self.a

    waiting = torch.Tensor._make_wrapper_subclass(Waiting, (2,))
    assert take_apart(waiting, "x") is None
