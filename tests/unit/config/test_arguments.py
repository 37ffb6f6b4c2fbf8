"""Calls that mean something else than they say: the message says what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import ConfigError
from tests.unit.round_trip import config

pytestmark = pytest.mark.usefixtures("working_directory")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


# --- making a checkpointer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("dir", "Checkpointer(persistent_dir='dir')"),
        (Path("dir"), "Checkpointer(persistent_dir='dir')"),
        ({"persistent_dir": "dir"}, "Checkpointer(**settings)"),
        (SingleComm(), "Checkpointer(comm=comm)"),
        (network(), "checkpoint(state, step)"),
        (7, "settings by name"),
    ],
)
def test_something_else_than_a_config(given: Any, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deeppart.Checkpointer(given)
    assert meant in str(caught.value) and "deeppart.Config" in str(caught.value)


# --- the calls --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ck(tmp_path: Path) -> Iterator[deeppart.Checkpointer]:
    with deeppart.Checkpointer(config(tmp_path)) as checkpointer:
        yield checkpointer


@pytest.mark.parametrize(
    ("step", "kind", "meant"),
    [
        ("100", TypeError, "int('100')"),
        ("last", TypeError, "whole number, not 'last'"),
        (5.0, TypeError, "int(5.0)"),
        (network(), TypeError, "a Sequential: the state comes first"),
        ({"w": 1}, TypeError, "a dict: the state comes first"),
        (-1, ValueError, "not -1"),
        (True, ValueError, "not True"),
        (10**18, ValueError, "from 0 to"),
    ],
)
def test_steps(ck: deeppart.Checkpointer, tmp_path: Path, step: Any, kind: type[Exception], meant: str) -> None:
    for call, does in (
        ("checkpoint(state, step)", lambda: ck.checkpoint({"a": 1}, step)),
        ("restore(state, step)", lambda: ck.restore({"a": 1}, step)),
        ("load(path, step)", lambda: deeppart.load(tmp_path / "ckpt", step)),
    ):
        with pytest.raises(kind, match=re.escape(meant)) as caught:
            does()
        assert str(caught.value).startswith(call)


def test_per_rank_misspelt_is_refused_before_there_is_anything_to_restore(ck: deeppart.Checkpointer) -> None:
    for word in ("stric", "Drop", None, ["drop"]):
        with pytest.raises(ConfigError, match='"strict", "drop", "rank0", a function'):
            ck.restore({"a": 1}, per_rank=word)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ckpt", Path("ckpt")])
def test_a_directory_is_no_state(ck: deeppart.Checkpointer, name: Any) -> None:
    with pytest.raises(TypeError, match=r"the state comes first.*deeppart\.load\('ckpt'\)"):
        ck.restore(name)
