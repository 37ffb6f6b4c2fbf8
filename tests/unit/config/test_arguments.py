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
from deeppart.errors import ConfigError, StateError
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


def test_a_setting_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no setting 'persistant_dir'") as caught:
        deeppart.Checkpointer(persistant_dir="dir")
    assert "write persistent_dir=" in str(caught.value)


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


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": (n for n in range(3))}, ["path a", "generator", "list"]),
        ({"models": {network()}}, ["path models", "set", "list"]),
        ({"keys": {"a": 1}.keys()}, ["path keys", "list"]),
    ],
)
def test_what_is_not_a_state(ck: deeppart.Checkpointer, state: Any, words: list[str]) -> None:
    with pytest.raises(StateError) as caught:
        ck.checkpoint(state, 1)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize("name", ["ckpt", Path("ckpt")])
def test_a_directory_is_no_state(ck: deeppart.Checkpointer, name: Any) -> None:
    with pytest.raises(TypeError, match=r"the state comes first.*deeppart\.load\('ckpt'\)"):
        ck.restore(name)


def test_what_cannot_be_saved_is_told_before_there_is_anything_to_restore(ck: deeppart.Checkpointer) -> None:
    assert ck.restore({"a": torch.zeros(3), "b": None}) is None
    for state in ({"a": torch.zeros(3), "b": {object()}}, {"models": network, "a": 1}):
        with pytest.raises(StateError, match=r"path (b|models)"):
            ck.restore(state)
