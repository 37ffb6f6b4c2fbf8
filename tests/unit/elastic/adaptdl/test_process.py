"""AdaptDL's names for a process: its variables, its states, what its replicas tell each other."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import BinaryIO

import pytest

import deeppart
from deeppart.elastic.adaptdl import checkpoint, collective, env
from deeppart.elastic.adaptdl.checkpoint import State, load_state, save_all_states
from deeppart.elastic.adaptdl.env import num_replicas, replica_rank
from deeppart.errors import ConfigError
from tests.ports import free_port
from tests.unit.elastic.adaptdl.conftest import forget_all

# --- AdaptDL's variables are asked first, the launcher's then ---------------------------------------------------------


def test_adaptdl(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "CHECKPOINT_PATH": "/c", "SHARE_PATH": "/s", "JOB_ID": "j", "MASTER_ADDR": "h", "MASTER_PORT": "7",
        "REPLICA_RANK": "2", "NUM_REPLICAS": "6", "NUM_NODES": "3", "NUM_RESTARTS": "4",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"ADAPTDL_{name}", value)
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "9")
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (2, 6, 3, 4)
    assert (env.checkpoint_path(), env.share_path(), env.job_id()) == ("/c", "/s", "j")
    assert (env.master_addr(), env.master_port()) == ("h", 7)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "RANK": "5", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "3", "DEEPPART_PERSISTENT_DIR": "/d",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (5, 8, 2, 3)
    assert (env.checkpoint_path(), env.job_id()) == ("/d", "r")


# --- States that come back by their names, from checkpoints of the library --------------------------------------------


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
    with pytest.raises(ConfigError, match="of AdaptDL itself"):
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


# --- Reductions between replicas --------------------------------------------------------------------------------------


def test_used_before_it_is_connected_and_connected_twice() -> None:
    assert not collective.initialized()
    for call in (collective.teardown, lambda: collective.allreduce(1)):
        with pytest.raises(ConfigError, match="no process group"):
            call()
    collective.initialize()
    with pytest.raises(ConfigError, match="process group exists already"):
        collective.initialize()
    assert collective.initialized() and collective.allreduce(3) == 3
    collective.teardown()
    assert not collective.initialized()


@pytest.mark.parametrize("replicas", [2, 3])
def test_between_replicas(replicas: int) -> None:
    """In processes that are forked from this one, with AdaptDL's variables."""
    context = multiprocessing.get_context("fork")
    variables = {"MASTER_PORT": str(free_port()), "NUM_REPLICAS": str(replicas), "NUM_NODES": "1"}

    def replica(rank: int) -> None:
        os.environ.update(
            {f"ADAPTDL_{name}": value for name, value in (variables | {"REPLICA_RANK": str(rank)}).items()}
        )
        collective.initialize()
        assert collective.allreduce(rank + 1, max) == num_replicas() == replicas
        assert collective.allreduce({replica_rank()}, lambda a, b: a | b) == set(range(replicas))
        assert collective.allreduce([rank]) == list(range(replicas))
        assert collective.broadcast(rank) == 0
        collective.teardown()

    processes = [context.Process(target=replica, args=(rank,), daemon=True) for rank in range(replicas)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * replicas
