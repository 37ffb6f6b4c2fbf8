"""Saved states restored into live ones that do not match: the right error, naming path and both sides, nothing touched.

Or into live ones that are other, but can take what was saved.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StateError
from deeppart.state.tree.ties import address
from deeppart.testing.states import array_bytes, arrays, difference

#: What was saved, what is live, the error, the path that it names, and texts that must be in its message.
Case = tuple[Any, Any, type[StateError], str, list[str]]


def ones(*shape: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ones(*shape, **kwargs)


def zeros(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(*shape, **kwargs)


def config(directory: Path) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), timeout=10.0)


def snapshot(state: Any) -> Any:
    """All bytes and values, and where they lie (state_dict() makes new tensors over the same memory)."""
    data = [(address(array), array_bytes(array)) for array in arrays(state)]
    return data, copy.deepcopy({key: item for key, item in state.items() if not isinstance(item, torch.nn.Module)})


def check_refused(directory: Path, case: Case) -> None:
    """The live part is refused among good ones, of which none is touched; what was saved fits in its place."""
    bad, live_bad, kind, path, texts = case
    state = {"after": ones(5), "bad": bad, "a": np.arange(3), "value": 1, "model": torch.nn.Linear(2, 2)}
    live = {"after": zeros(5), "bad": live_bad, "a": np.zeros(3, int), "value": 0, "model": torch.nn.Linear(2, 2)}
    with deeppart.Checkpointer(config(directory)) as ck:
        ck.checkpoint(state, step=7).wait(timeout=200)
        before = snapshot(live)
        with pytest.raises(kind) as caught:
            ck.restore(live)
        text = str(caught.value)
        assert type(caught.value) is kind or kind is StateError
        assert f"path {path}" in text.replace("paths ", "path ") and not [t for t in texts if t not in text], text
        assert "to do:" in text
        after = snapshot(live)
        assert before[0] == after[0] and difference(before[1], after[1]) is None
        good = {**live, "bad": copy.deepcopy(bad)}
        assert ck.restore(good) == 7, "and the checkpointer is none the worse"
        assert difference(state, good) is None


def check_brought_back(directory: Path, saved: Any, live: Any) -> None:
    """The live part takes what was saved; its arrays and dicts stay the objects that they are."""
    before = [id(array) for array in arrays(live)]
    with deeppart.Checkpointer(config(directory)) as ck:
        ck.checkpoint({"x": saved}, step=1).wait(timeout=200)
        state = {"x": live}
        ck.restore(state)
    found, expected = state["x"], saved
    if {type(found), type(expected)} == {dict, OrderedDict}:
        assert type(found) is type(live), "the live container stays"
        found, expected = dict(found), dict(expected)
    assert difference(expected, found, ordered=False) is None
    assert [id(array) for array in arrays(state["x"])][: len(before)] == before or not before
