"""Positions of data loaders: where a run goes on, whatever it drew meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deeppart.interop.data_position import go_to, own_generator, position
from deeppart.interop.training_state import pack, unpack

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata


class Numbers(torch.utils.data.IterableDataset[Any]):
    """Of two epochs; each number is drawn from the process's random numbers."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 20:
            self.at += 1
            yield torch.tensor([self.at, int(torch.randint(1000, ()))])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def stateful(data: Any, **how: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install 'deeppart[trainers]'")
    return module.StatefulDataLoader(data, batch_size=2, **how)


def test_a_loader_goes_on_with_the_same_batches() -> None:
    data = list(range(20))
    whole, resumed = (stateful(data, shuffle=True) for _ in range(2))
    for loader in (whole, resumed):
        own_generator(loader)
    batches = iter(whole)
    for _ in range(4):
        next(batches)
    saved = unpack(pack(position(whole), "x"), "x")
    rest = [batch.tolist() for batch in batches]
    go_to(resumed, saved)
    assert [batch.tolist() for batch in resumed] == rest and len(rest) == 6
    assert [batch.tolist() for batch in whole] == [batch.tolist() for batch in resumed]  # and in the next epoch


def test_beginning_draws_nothing_from_the_process() -> None:
    loader = stateful(Numbers())
    own_generator(loader)
    torch.manual_seed(3)
    first = next(iter(loader))
    torch.manual_seed(3)
    assert first[0, 1] == torch.randint(1000, ())


def test_a_generator_that_the_user_gave_stays() -> None:
    given = torch.Generator().manual_seed(5)
    data: Any = list(range(4))
    loader: Any = torch.utils.data.DataLoader(data, generator=given)
    own_generator(loader)
    assert loader.generator is given


def test_what_has_no_generator_is_left_alone() -> None:
    own_generator(object())
    own_generator(None)
    other = SimpleNamespace(rank=3)
    own_generator(other)
    assert vars(other) == {"rank": 3}


def test_a_subclass_that_pickles_its_position_is_asked_for_what_it_pickles() -> None:
    kind = type(stateful([]))

    class Pickling(kind):  # type: ignore[misc, valid-type]
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    loader, resumed = (Pickling(list(range(6)), batch_size=2) for _ in range(2))
    next(iter(loader))
    go_to(resumed, position(loader))
    assert next(iter(resumed)).tolist() == [2, 3]
