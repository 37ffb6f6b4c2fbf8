"""States that come back by their names, from checkpoints of the library."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest

import deeppart
from deeppart.elastic.adaptdl import checkpoint
from deeppart.elastic.adaptdl.checkpoint import State, load_state, save_all_states
from deeppart.errors import ConfigError
from tests.unit.elastic.adaptdl.conftest import forget_all


class Text(State):
    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(name)
        self.text, self.synced = text, 0

    def save(self, fileobj: BinaryIO) -> None:
        fileobj.write(self.text.encode())

    def load(self, fileobj: BinaryIO) -> None:
        self.text = fileobj.read().decode()

    def sync(self) -> None:
        self.synced += 1


NAMES = ["plain", ".dot-first", "a/b", "with space", "*", "[x]?", "~0", "\u00fc", "%2F"]


def again(*names: str) -> dict[str, str | None]:
    """What a job that is started again finds."""
    forget_all()
    states = [Text(name) for name in names]
    return {state.name: state.text if load_state(state) else None for state in states}


def test_any_name(directory: Path) -> None:
    states = [Text(name, f"of {name}") for name in NAMES]
    assert save_all_states() == str(directory)
    assert [state.synced for state in states] == [1] * len(states)
    assert again(*NAMES, "new") == {name: f"of {name}" for name in NAMES} | {"new": None}


def test_the_last_one_counts_but_one_process_goes_on_from_one(directory: Path) -> None:
    state = Text("a", "first")
    save_all_states()
    assert again("a") == {"a": "first"}
    checkpoint._states["a"].text = "second"  # type: ignore[attr-defined]
    save_all_states()
    late = Text("b")
    assert not load_state(late) and state.text == "first"
    assert again("a") == {"a": "second"}


def test_without_a_checkpoint_and_without_a_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_state(Text("a"))
    monkeypatch.delenv("ADAPTDL_CHECKPOINT_PATH")
    monkeypatch.delenv("DEEPPART_PERSISTENT_DIR", raising=False)
    assert save_all_states() is None and not load_state(Text("b"))


def test_checkpoints_of_adaptdl_are_not_taken_for_none(directory: Path) -> None:
    (directory / "checkpoint-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match="AdaptDL's own"):
        load_state(Text("a"))


def test_a_damaged_checkpoint_is_an_error_and_not_a_beginning(directory: Path) -> None:
    Text("a", "x" * 1000)
    save_all_states()
    for part in directory.rglob("*.dpp"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        part.write_bytes(data)
    with pytest.raises(deeppart.DeeppartError):
        again("a")
