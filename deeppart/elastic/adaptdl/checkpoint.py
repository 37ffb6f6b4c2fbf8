"""States that come back by their names, in one checkpoint with the models and the training's progress."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import torch

import deeppart
from deeppart.elastic.parallel import ElasticDataParallel
from deeppart.elastic.progress import progress
from deeppart.errors import ConfigError
from deeppart.extension import Step

from . import env
from .collective import broadcast, refuse_unconnected

_states: dict[str, State] = {}
_models: dict[str, ElasticDataParallel] = {}
#: What this process goes on from. It is read once: another checkpoint may be made before the last state is loaded.
_found: dict[str, Any] | None = None


class State:
    """Something that is saved with all others by :func:`save_all_states`, and comes back by :func:`load_state`."""

    def __init__(self, name: str) -> None:
        if name in _states:
            raise ConfigError("two states have the same name", found=repr(name), todo="give one another name")
        self.name = name
        _states[name] = self

    def save(self, fileobj: BinaryIO) -> None:
        """Write it to a file; is called on replica 0 alone."""

    def load(self, fileobj: BinaryIO) -> None:
        """Read it from a file."""

    def sync(self) -> None:
        """Make it the same on all replicas (collective); is called before it is saved."""


def save_all_states() -> str | None:
    """Make a checkpoint of all states, models and places in the data (collective), complete when this returns."""
    for state in _states.values():
        state.sync()
    path = env.checkpoint_path()
    if path is None:
        return None
    if env.num_replicas() > 1:
        refuse_unconnected()
    content = {
        "states": {_key(name): _written(state) for name, state in _states.items()},
        "models": {name: _objects(model) for name, model in _models.items()},
        "elastic": progress,
    }
    # Of buffers, such as running means, replica 0's count, as in DistributedDataParallel.
    buffers = [f"models/{name}/model/{each}" for name, model in _models.items() for each in _buffers(model.module)]
    replicated = dict.fromkeys(buffers, "rank0") | {"*": "auto"}
    with deeppart.Checkpointer(persistent_dir=path, replicated=replicated) as checkpointer:
        checkpointer.checkpoint(content, checkpointer.next_step(), force=True).wait()
    return path if env.replica_rank() == 0 else None


def load_state(state: State) -> bool:
    """Bring a state back, if there is a checkpoint that has it; each replica reads it for itself."""
    saved = found()["states"].get(_key(state.name))
    if saved is not None:
        state.load(io.BytesIO(saved.numpy().tobytes()))
    return saved is not None


def load_model(name: str, model: ElasticDataParallel) -> None:
    """Bring a model back, with what belongs to it, and save it from now on."""
    name = _key(name)
    saved = found()["models"].pop(name, {})  # it may be large
    for key, each in _objects(model).items():
        if key in saved:
            each.load_state_dict(saved[key])
    _models[name] = model


def found() -> dict[str, Any]:
    """The newest checkpoint; the first call brings the training's progress back."""
    global _found
    if _found is None:
        _found = _read(env.checkpoint_path())
        if "elastic" in _found:
            progress.load_state_dict(_found["elastic"])
    return _found


def _read(path: str | None) -> dict[str, Any]:
    root = None if path is None else Path(path)
    if root is not None and root.is_dir():
        if Step.committed(root):
            saved: dict[str, Any] = deeppart.load(root)
            return saved
        if any(root.glob("checkpoint-*")):
            raise ConfigError(
                "these checkpoints are AdaptDL's own, which are not read",
                where=path,
                todo="give another directory, and begin the training anew; or load the model's file by hand",
            )
    return {"states": {}, "models": {}}


def _written(state: State) -> torch.Tensor:
    """uint8: what a state writes on replica 0."""
    file = io.BytesIO()
    if env.replica_rank() == 0:
        state.save(file)
    data = file.getvalue() if env.num_replicas() == 1 else broadcast(file.getvalue())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _buffers(module: torch.nn.Module) -> list[str]:
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return [name for name in module.state_dict() if name not in trained]


def _objects(model: ElasticDataParallel) -> dict[str, Any]:
    return {key: each for key, each in model.state().items() if key != "elastic"}


def _key(name: str) -> str:
    """A name without what has a meaning in a path or in a pattern over paths."""
    return quote(name, safe="").replace("~", "%7E")
