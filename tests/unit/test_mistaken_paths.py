"""Paths that are no checkpoint directory: the message says what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import deeppart
from deeppart.cli.app import main
from deeppart.errors import RestoreError
from tests.unit.round_trip import config

pytestmark = pytest.mark.usefixtures("working_directory")


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    settings = {"local_dir": str(tmp_path / "local"), "keep": {"local": 2}}
    with deeppart.Checkpointer(config(tmp_path, **settings)) as ck:
        ck.checkpoint({"a": torch.ones(3)}, 100).wait()
    return tmp_path / "ckpt"


def step_directory(root: Path) -> Path:
    (found,) = root.glob("step-000000000100*")
    return found


PLACES: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "a step": (step_directory, ["directory of one step", 'load("{root}", step=100)']),
    "a manifest": (lambda root: step_directory(root) / "manifest", ["file of one step", 'load("{root}", step=100)']),
    "a part": (lambda root: next(step_directory(root).glob("*.dpp")), ["file of one step", 'load("{root}", step=100)']),
    "local_dir": (lambda root: root.parent / "local", ["a local_dir", "persistent_dir", "deeppart ls DIR --local"]),
    "inside local_dir": (lambda root: next((root.parent / "local").iterdir()), ["a local_dir", "persistent_dir"]),
    "nothing there": (
        lambda root: root / "nothing" / "deep",
        ["no such checkpoint directory", "found: of this path, only {root} exists", "persistent_dir"],
    ),
    "a misspelt name": (lambda root: root.parent / "cpkt", ["no such checkpoint", "did you mean {root}?"]),
    "empty": (lambda root: made(root.parent / "empty"), ["committed", "where:"]),
    "a file": (lambda root: file(root.parent / "notes.txt", b"text"), ["a file, not a checkpoint directory"]),
    "torch.save": (lambda root: torch_saved(root.parent / "model"), ["torch.save", "torch.load", "interop.load"]),
    "old torch.save": (lambda root: file(root.parent / "model.pt", b"\x80\x02"), ["torch.save", "torch.load"]),
    "safetensors": (
        lambda root: file(root.parent / "m.safetensors", b"\x08"),
        ["safetensors.torch.load_file", "deeppart import"],
    ),
    "DCP": (lambda root: dcp_saved(root.parent / "dcp"), ["torch.distributed.checkpoint", "deeppart import"]),
}


def made(path: Path) -> Path:
    path.mkdir()
    return path


def file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def torch_saved(path: Path) -> Path:
    torch.save({"a": torch.ones(2)}, path)
    return path


def dcp_saved(path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(2)}, checkpoint_id=path, no_dist=True)
    return path


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PLACES)
def test_load_of_something_else(saved: Path, name: str) -> None:
    make, words = PLACES[name]
    place = make(saved)
    for step in (None, 100):
        with pytest.raises(RestoreError) as caught:
            deeppart.load(place, step=step)
        text = str(caught.value)
        wanted = [word.replace("{root}", str(saved)) for word in words]
        assert not [word for word in wanted if word not in text], text


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["a step", "local_dir", "DCP", "torch.save", "a part"])
def test_the_commands_say_it_too(saved: Path, name: str) -> None:
    outcome = CliRunner().invoke(main, ["ls", str(PLACES[name][0](saved))])
    assert outcome.exit_code != 0
    words = {"a step": "one step", "local_dir": "local_dir", "DCP": "torch.distributed.checkpoint"}
    assert words.get(name, "a file") in " ".join((outcome.output + outcome.stderr).split())
