"""What was restored is put where it belongs: in the live tensor, container or object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.states import Box, difference
from tests.unit.trained import network, save_and_restore


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


class Refusing(Box):
    def load_state_dict(self, state: Any) -> None:
        raise KeyError("not today")


def test_a_refused_load_is_a_state_error_that_says_what_has_changed(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(live.parameters())
    state = {"m": model, "o": optimizer, "r": {"x": Box({"x": 1})}, "z": torch.Generator()}
    fresh = {"m": live, "o": other, "r": {"x": Refusing({"x": 0})}, "z": torch.Generator()}
    told = r"tensors of m, z may .*; load_state_dict has returned for m, o$"
    with pytest.raises(deeppart.StateError, match=told) as caught:
        save_and_restore(tmp_path, state, fresh)
    assert all(word in str(caught.value) for word in ("Refusing", "path r/x", "not today"))
    assert difference(model, live) is None
