"""State that is saved and comes back by its name, in one checkpoint of the library.

AdaptDL writes a file for each state on replica 0. Here all of them are one checkpoint: checked, complete or not there,
and where the launcher connects the replicas each writes its share of the models.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import torch
import torch.distributed as dist

import deeppart
from deeppart.comm import SingleComm
from deeppart.config.job import launch
from deeppart.errors import DeeppartWarning, warn_caller
from deeppart.offline.find import find_step
from deeppart.offline.load import load
from deeppart.storage.manifests import committed_steps

from . import env
from .collective import broadcast, initialized
from .errors import UsageError

_STATES = "states"
_states: dict[str, State] = {}
#: Directory -> the step that this process goes on from: one, even if another is saved meanwhile.
_found: dict[str, int | None] = {}


class State:
    """Something that is saved with all others by :func:`save_all_states`, and comes back by :func:`load_state`."""

    def __init__(self, name: str) -> None:
        if name in _states:
            raise UsageError("two states have the same name", found=repr(name), todo="give one another name")
        self.name = name
        _states[name] = self

    def save(self, fileobj: BinaryIO) -> None:
        """Write it to a file; is called on replica 0 alone."""

    def load(self, fileobj: BinaryIO) -> None:
        """Read it from a file."""

    def sync(self) -> None:
        """Make it the same on all replicas (collective); is called before it is saved."""

    def outdated(self) -> bool:
        """True once it is never needed again: it is left out then, and forgotten."""
        return False


class TreeState(State):
    """A state of tensors, which is saved as it is, by all replicas together."""

    def tree(self) -> dict[str, Any]:
        """Nested containers, the same on every replica but for what is below "buffers", of which replica 0's count."""
        raise NotImplementedError

    def load_tree(self, tree: Mapping[str, Any]) -> None:
        """Go on from them."""
        raise NotImplementedError


def save_all_states() -> str | None:
    """Make a checkpoint of all states (collective), complete when this returns."""
    for name in [name for name, state in _states.items() if state.outdated()]:
        del _states[name]
    for state in _states.values():
        state.sync()
    path, rank = env.checkpoint_path(), env.replica_rank()
    if path is None:
        return None
    together = env.num_replicas() == 1 or dist.is_initialized() or launch() is not None
    if together or rank == 0:
        _save(path, rank, None if together else SingleComm())
    return path if rank == 0 else None


def _save(path: str, rank: int, comm: Any) -> None:
    saved = {_key(name): _content(state, rank, alone=comm is not None) for name, state in _states.items()}
    replicated = {f"{_STATES}/*/buffers/*": "rank0", "*": "auto"}
    with deeppart.Checkpointer(persistent_dir=path, comm=comm, replicated=replicated) as checkpointer:
        checkpointer.checkpoint({_STATES: saved}, checkpointer._next_step(), force=True).wait()


def _content(state: State, rank: int, *, alone: bool) -> Any:
    """What is saved of a state: what it writes on replica 0, or its tensors."""
    if isinstance(state, TreeState):
        return state.tree()
    file = io.BytesIO()
    if rank == 0:
        state.save(file)
    data = file.getvalue()
    if not alone and env.num_replicas() > 1:
        data = _from_replica_0(data)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _from_replica_0(data: bytes) -> bytes:
    if initialized():
        found: bytes = broadcast(data)
        return found
    holder = [data]
    dist.broadcast_object_list(holder)
    return holder[0]


def load_state(state: State) -> bool:
    """Bring a state back, if there is a checkpoint that has it; each replica reads it for itself."""
    path = env.checkpoint_path()
    step = None if path is None else _step(path)
    if path is None or step is None:
        return False
    name = _key(state.name)
    try:
        saved = load(path, step, keys=f"{_STATES}/{name}")[_STATES][name]
    except deeppart.StructureMismatchError:
        return False
    if isinstance(state, TreeState):
        state.load_tree(saved)
    else:
        state.load(io.BytesIO(saved.numpy().tobytes()))
    return True


def _step(path: str) -> int | None:
    """The step that this process goes on from; None if nothing was saved."""
    if path not in _found:
        root = Path(path)
        _found[path] = None
        committed = committed_steps(root) if root.is_dir() else ()
        if not committed and any(root.glob("checkpoint-*")):
            raise UsageError(
                "these checkpoints are AdaptDL's own, which are not read",
                where=path,
                todo="give another directory, and begin the training anew; or load the model's file by hand",
            )
        if committed:
            chosen, passed_over = find_step(root, None, None)
            _found[path] = chosen.key.step
            for line in passed_over:
                warn_caller(f"step {chosen.key.step} is loaded; {line}", DeeppartWarning)
    return _found[path]


def _key(name: str) -> str:
    """A name without what has a meaning in a path or in a pattern over paths."""
    return quote(name, safe="").replace("~", "%7E")
