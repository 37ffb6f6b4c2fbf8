"""What counts as an object, and what stands in the tree for it."""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.tree.objects import is_object, object_form, object_state
from tests.features.script_values import Settings


class Numbers(random.Random):
    pass


@dataclasses.dataclass
class WithState:
    a: int = 1

    def state_dict(self) -> Any:
        return {"b": self.a}

    def load_state_dict(self, state: Any) -> None:
        self.a = state["b"]


@pytest.mark.parametrize("item", [torch.nn.Linear(1, 1), torch.Generator(), np.random.MT19937(1), random.Random(1)])
def test_those_that_give_their_state_have_no_form(item: Any) -> None:
    assert is_object(item) and object_form(item) is None and object_state(item, None, ("a",)) is not None


def test_a_state_dict_comes_before_fields() -> None:
    assert object_form(WithState()) is None and object_state(WithState(), None, ()) == {"b": 1}
    form = object_form(Settings(2))
    assert form is not None and object_state(Settings(2), form, ())["rate"] == 2


@pytest.mark.parametrize("item", [object(), Numbers(1), random.SystemRandom(), collections.UserList(), len, Settings])
def test_others_are_none(item: Any) -> None:
    assert not is_object(item)
