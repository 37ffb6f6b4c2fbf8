"""Named states, saved in one checkpoint with the models and the progress of the training."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import torch

import deeppart
from deeppart.elastic.epochs import progress
from deeppart.elastic.parallel import ElasticDataParallel
from deeppart.errors import ConfigError
from deeppart.extension import Step

from . import env
from .collective import broadcast, check_initialized

_states: dict[str, State] = {}
_models: dict[str, ElasticDataParallel] = {}
#: The checkpoint to continue from. It is read once, since a newer one may be saved before all states are loaded.
_restored: dict[str, Any] | None = None


class State:
    """A state that :func:`save_all_states` saves and :func:`load_state` loads."""

    def __init__(self, name: str) -> None:
        if name in _states:
            raise ConfigError("two states have the same name", found=repr(name), todo="give one another name")
        self.name = name
        _states[name] = self

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state to a file; called on replica 0 only."""

    def load(self, fileobj: BinaryIO) -> None:
        """Read the state from a file."""

    def sync(self) -> None:
        """Make the state the same on all replicas (collective); called before it is saved."""


def save_all_states() -> str | None:
    """Save all states, models and positions in the data, and wait until that is complete (collective)."""
    for state in _states.values():
        state.sync()
    path = env.checkpoint_path()
    if path is None:
        return None
    if env.num_replicas() > 1:
        check_initialized()
    content = {
        "states": {_key(name): _serialized(state) for name, state in _states.items()},
        "models": {name: _objects(model) for name, model in _models.items()},
        "elastic": progress,
    }
    # Buffers such as running means are those of replica 0, as in DistributedDataParallel.
    buffers = [f"models/{name}/model/{each}" for name, model in _models.items() for each in _buffers(model.module)]
    replicated = dict.fromkeys(buffers, "rank0") | {"*": "auto"}
    with deeppart.Checkpointer(persistent_dir=path, replicated=replicated) as checkpointer:
        checkpointer.checkpoint(content, checkpointer.next_step(), force=True).wait()
    return path if env.replica_rank() == 0 else None


def load_state(state: State) -> bool:
    """Load a state on this replica if a checkpoint contains it."""
    saved = restored()["states"].get(_key(state.name))
    if saved is not None:
        state.load(io.BytesIO(saved.numpy().tobytes()))
    return saved is not None


def load_model(name: str, model: ElasticDataParallel) -> None:
    """Load a model with its optimizer, scheduler and scaler, and save them from now on."""
    name = _key(name)
    saved = restored()["models"].pop(name, {})  # it may be large
    for key, each in _objects(model).items():
        if key in saved:
            each.load_state_dict(saved[key])
    _models[name] = model


def restored() -> dict[str, Any]:
    """The newest checkpoint; the first call also loads the progress of the training."""
    global _restored
    if _restored is None:
        _restored = _read(env.checkpoint_path())
        if "elastic" in _restored:
            progress.load_state_dict(_restored["elastic"])
    return _restored


def _read(path: str | None) -> dict[str, Any]:
    root = None if path is None else Path(path)
    if root is not None and root.is_dir():
        if Step.newest(root) is not None:
            saved: dict[str, Any] = deeppart.load(root)
            return saved
        if any(root.glob("checkpoint-*")):
            raise ConfigError(
                "checkpoints of AdaptDL itself cannot be read",
                where=path,
                todo="use another directory and start the training over; or load the model's file by hand",
            )
    return {"states": {}, "models": {}}


def _serialized(state: State) -> torch.Tensor:
    """uint8: the output of ``save`` on replica 0."""
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
    """A name in which characters with a meaning in paths and patterns are quoted."""
    return quote(name, safe="").replace("~", "%7E")
