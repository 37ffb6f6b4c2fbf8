"""What was restored is put where it belongs: in the live tensor, container or object."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.testing.states import Box, difference
from tests.unit.trained import network, save_and_restore, train


class Tied(torch.nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def test_tied_weights_are_saved_once_and_tied_again(tmp_path: Path) -> None:
    model, live = Tied(), Tied()
    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
        assert ck.checkpoint({"m": model}, step=1).report.raw_bytes == 50 * 16 * 4
        ck.restore({"m": live})
    assert live.head.weight is live.embedding.weight and difference(model, live) is None
    loaded = deeppart.load(tmp_path / "ckpt")["m"]
    assert loaded["head.weight"].data_ptr() == loaded["embedding.weight"].data_ptr()
    untied = Tied(tied=False)
    with deeppart.Checkpointer(config) as ck:
        ck.restore({"m": untied})
    assert difference(model, untied) is None
    assert untied.head.weight.data_ptr() != untied.embedding.weight.data_ptr()


def test_tied_weights_that_are_not_contiguous_are_tied_again(tmp_path: Path) -> None:
    first: Any = torch.nn.Conv2d(4, 8, 3)
    first.to(memory_format=torch.channels_last)
    second = torch.nn.Conv2d(4, 8, 3, bias=False)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    live: Any = copy.deepcopy(model)
    with torch.no_grad():
        live[0].weight.zero_()
    loaded = save_and_restore(tmp_path, {"m": model}, {"m": live})["m"]
    assert difference(model, live) is None and live[1].weight is live[0].weight
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()
    size = next((tmp_path / "ckpt").glob("step-000000000003-*/part-00000-of-00001.dpp")).stat().st_size
    assert size < 8 * 4 * 9 * 4 + 8 * 4 + 8000


@pytest.mark.parametrize("stepped", [0, 1])
def test_state_of_another_dtype_than_the_parameters_keeps_it(tmp_path: Path, stepped: int) -> None:
    """torch casts optimizer state to the parameter's dtype when it loads; the checkpoint's is the right one."""
    models, optimizers = [], []
    for seed, steps in ((1, 2), (2, stepped)):
        model = network(seed, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, steps)
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].float() + 2**-20
            state["exp_avg_sq"] = state["exp_avg_sq"].double()
        models.append(model)
        optimizers.append(optimizer)
    kept = {id(s["exp_avg"]) for s in optimizers[1].state.values()}
    save_and_restore(tmp_path, {"o": optimizers[0]}, {"o": optimizers[1]})
    assert difference(optimizers[0].state_dict(), optimizers[1].state_dict(), ordered=False) is None
    assert {s["exp_avg"].dtype for s in optimizers[1].state.values()} == {torch.float32}
    if stepped:
        assert {id(s["exp_avg"]) for s in optimizers[1].state.values()} == kept, "in place"


def test_one_list_at_two_places_of_an_object_is_not_filled_twice(tmp_path: Path) -> None:
    """As SequentialLR does: two places of a fresh object hold one list until the first step."""
    shared = [0.0]
    saved, live = Box({"a": [1.0], "b": [2.0]}), Box({"a": shared, "b": shared})
    save_and_restore(tmp_path, saved, live)
    assert live.content == {"a": [1.0], "b": [2.0]} and shared == [0.0]


def test_ordered_state_of_an_object_keeps_its_order(tmp_path: Path) -> None:
    saved, live = Box(OrderedDict(b=1, a=2, c=3)), Box(OrderedDict(a=0, c=0, b=0))
    save_and_restore(tmp_path, saved, live)
    assert list(live.content.items()) == [("b", 1), ("a", 2), ("c", 3)]


class Refusing(Box):
    def load_state_dict(self, state: Any) -> None:
        raise KeyError("not today")


def test_a_refused_load_is_a_state_error_that_names_the_object(tmp_path: Path) -> None:
    with pytest.raises(deeppart.StateError, match="Refusing") as caught:
        save_and_restore(tmp_path, {"a": {"r": Box({"x": 1})}}, {"a": {"r": Refusing({"x": 0})}})
    assert "path a/r" in str(caught.value) and "not today" in str(caught.value)


def test_a_refused_load_says_what_has_changed(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(live.parameters())
    state = {"m": model, "o": optimizer, "r": Box({"x": 1}), "z": torch.Generator()}
    with pytest.raises(deeppart.StateError, match=r"tensors of m, z may .*; load_state_dict has returned for m, o$"):
        save_and_restore(tmp_path, state, {"m": live, "o": other, "r": Refusing({"x": 0}), "z": torch.Generator()})
    assert difference(model, live) is None
