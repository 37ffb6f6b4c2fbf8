"""Tensors that are made of others: taken apart, made again, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tensors.composites import decompose
from tests.tensor_kinds import Described

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


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
        decompose(Described(torch.ones(2), context), "x/y")
    assert (
        said in str(caught.value)
        and "Described" in str(caught.value)
        and "to do: save the tensors" in str(caught.value)
    )


def test_the_result_of_a_collective_is_not_taken_for_what_it_wraps() -> None:
    class Waiting(Described):
        def trigger_wait(self) -> torch.Tensor:
            return self.a

    waiting = torch.Tensor._make_wrapper_subclass(Waiting, (2,))
    assert decompose(waiting, "x") is None
