"""Checkpoints for torchtitan 0.3: a checkpoint manager for its Trainer.

config.checkpoint = deeppart.interop.torchtitan.CheckpointManager.Config(enable=True, interval=50)
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from deeppart import Checkpointer, Pending
from deeppart import Config as Settings
from deeppart.errors import ConfigError, RestoreError
from deeppart.interop.saving import Saving, require
from deeppart.interop.training_state import own_generator, pack, position, rng_state, seek, set_rng_state, unpack

require("torchtitan", "0.3", "deeppart.interop.torchtitan")

from torchtitan.components.checkpointer.base import (
    DATALOADER,
    LR_SCHEDULER,
    MODEL,
    OPTIMIZER,
    BaseCheckpointManager,
    ModelWrapper,
)
from torchtitan.tools import filesystem

#: Name of the state of each rank's random generators.
RNG = "rng"
#: Folder suffix of the final model-only checkpoint, which torchtitan's own manager writes.
EXPORTS = "-export"


class CheckpointManager(BaseCheckpointManager):
    """Saves and resumes torchtitan's training with any of its parallelisms.

    A checkpoint holds the model, the optimizers as torchtitan flattens them (by parameter name), learning rate
    schedulers, the trainer's states (steps and tokens), and for each rank its random generators and data position. It
    is made in the background whenever torchtitan's manager would make one, and at the last step. Tensors can be
    restored to any layout and world size; data positions to the same degree of data parallelism.

    torchtitan's own manager handles the initial load (``initial_load_path``, Hugging Face weights) and the final
    model-only checkpoint (``last_save_model_only``), which goes to ``<folder>-export``. The complete last step is saved
    as well, so that training can continue from it.

    Settings beside those of :class:`Config` come from the environment and ``deeppart.toml``. The directory is
    torchtitan's ``<dump_folder>/<folder>``.

    Raises:
        ConfigError: the folder is remote; a seed checkpoint is requested; ``exclude_from_loading`` has unknown names;
            the initial load is a checkpoint directory of deeppart.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        """torchtitan's checkpoint options, and ``per_rank``."""

        per_rank: Literal["strict", "rank0", "drop"] | dict[str, Literal["strict", "rank0", "drop"]] = field(
            default_factory=dict
        )
        """Policies for rank-local leaves on another world size, as for ``Checkpointer.restore``. By default random
        generators keep their seeds, and any other rank-local leaf is an error."""

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[Any],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        self.save_future: Future[None] | None = None
        if not self.enable:
            return
        self.folder = filesystem.join(base_folder, config.folder)
        self.keep_latest_k = config.keep_latest_k
        self.states = states
        self._config = config
        self._parts = {"dataloader": dataloader, "model_parts": model_parts, "optimizers": optimizers}
        self._parts |= {"lr_schedulers": lr_schedulers, "sd_adapter": sd_adapter, "base_folder": base_folder}
        states |= {MODEL: ModelWrapper(model_parts), OPTIMIZER: optimizers}
        states |= {DATALOADER: dataloader, LR_SCHEDULER: lr_schedulers}
        _check(config, self.folder, states)
        own_generator(dataloader)
        self._saving = Saving(Checkpointer(_settings(self.folder, config.keep_latest_k)))

    # --- called by BaseCheckpointManager ---

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        """Restore a step, or the newest; if there is none, do torchtitan's initial load."""
        fresh = [optimizer for optimizer in self.states[OPTIMIZER] if not optimizer.state]
        state = self._live()
        names = tuple(state)  # restore may add entries of the checkpoint
        wanted, defaults = None if step == -1 else step, {f"{RNG}/*": "drop"}
        found = self._saving.restore(state, wanted, self._config.per_rank, defaults=defaults)
        if found is not None:
            self._load_states({name: state[name] for name in names})
            return True
        for optimizer in fresh:  # state_dict() initialized its state by a step, which must not count
            optimizer.state.clear()
        if step != -1:
            raise RestoreError(
                "the step to load does not exist", expected=f"step {step}", found="no checkpoint", where=self.folder
            )
        # An empty folder, so that it finds no steps of its own.
        native = self._native(filesystem.join(self.folder, "none"))
        return bool(native.load())

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save if due; returns once the state may change."""
        if not self._is_due(curr_step, last_step):
            return False
        pending = self._saving.save(self._state, curr_step, force=last_step)
        self.save_future = _PendingFuture(pending) if pending.levels else None
        if last_step and self._config.last_save_model_only:
            self._native(self.folder + EXPORTS).save(curr_step, last_step=True)
        return bool(pending.levels)

    def _maybe_wait_for_staging(self) -> None:
        """Nothing: once ``checkpoint()`` has returned, the state may change."""

    def _wait_for_saving(self) -> None:
        assert self.save_future is not None
        waited, self.save_future = self.save_future, None
        waited.result()

    def _close(self) -> None:
        """Finish background work; after an error, without waiting for other ranks."""
        if (saving := getattr(self, "_saving", None)) is not None:
            saving.checkpointer.__exit__(*sys.exc_info())

    # --- the state ---

    def _is_due(self, step: int, last_step: bool) -> bool:
        config = self._config
        if config.load_only:
            return False
        first = step == 1 and config.enable_first_step_checkpoint
        auto = self._saving.checkpointer.config.every == "auto"
        return bool(first or last_step or auto or step % config.interval == 0)

    def _state(self) -> dict[str, Any]:
        state = {name: each.state_dict() for name, each in self.states.items() if name != DATALOADER}
        if (loader := self.states[DATALOADER]) is not None:
            state[_position_name(loader)] = pack(position(loader), DATALOADER)
        return state | {RNG: rng_state()}

    def _live(self) -> dict[str, Any]:
        """The live state to restore into; tensors are restored in place."""
        excluded = self._config.exclude_from_loading
        wanted = {name: each for name, each in self.states.items() if name not in excluded and each is not None}
        state = {name: each.state_dict() for name, each in wanted.items() if name != DATALOADER}
        if DATALOADER in wanted:
            state[_position_name(wanted[DATALOADER])] = ""
        return state if RNG in excluded else state | {RNG: {}}

    def _load_states(self, state: dict[str, Any]) -> None:
        """Load the restored states into their objects."""
        for name, restored in state.items():
            if name in self.states:
                self.states[name].load_state_dict(restored)
            elif name != RNG:
                seek(self.states[DATALOADER], unpack(restored, "the data position"))
        if RNG in state:
            set_rng_state(state[RNG])

    def _native(self, folder: str) -> Any:
        """torchtitan's own manager, for its own formats."""
        from torchtitan.components.checkpointer.dcp import CheckpointManager as Native

        names = [field.name for field in fields(BaseCheckpointManager.Config)]
        given = {name: getattr(self._config, name) for name in names}
        excluded = [name for name in self._config.exclude_from_loading if name != RNG]  # unknown to torchtitan
        config = Native.Config(**given | {"keep_latest_k": 0, "exclude_from_loading": excluded})
        native = Native(config, states=dict(self.states), **self._parts)
        native.folder = folder
        return native


class _PendingFuture(Future[None]):
    """A pending checkpoint as a Future, for torchtitan."""

    def __init__(self, pending: Pending) -> None:
        super().__init__()
        self._pending = pending

    def done(self) -> bool:
        return self._pending.finished

    def result(self, timeout: float | None = None) -> None:
        for level in sorted(self._pending.levels):
            self._pending.wait(level, timeout)


def _settings(folder: str, keep: int) -> Settings:
    """The user's settings, with torchtitan's folder and number of steps to keep."""
    found = Settings(persistent_dir=folder)
    # Pipeline stages have different parameters, and data-parallel ranks different positions.
    replicated = "parts" if found.replicated == "auto" else found.replicated
    return replace(found, keep={**found.keep, "persistent": keep}, replicated=replicated)


def _position_name(loader: Any) -> str:
    """The name of the data position, the same on all ranks with the same data-parallel rank.

    The data-parallel degree is part of the name, so that restoring to another degree is an error. The entry is at the
    top level, since a dict of small values would be replaced by the saved one without checking names.
    """
    return f"{DATALOADER}_dp_rank_{getattr(loader, 'dp_rank', 0)}_of_{getattr(loader, 'dp_world_size', 1)}"


def _check(config: Any, folder: str, states: dict[str, Any]) -> None:
    """Reject unsupported options."""
    if filesystem.is_remote(folder):
        raise ConfigError(
            "the checkpoint folder must be local", expected="a path", found=folder, todo="set checkpoint.folder"
        )
    if config.create_seed_checkpoint:
        raise ConfigError(
            "deeppart's CheckpointManager cannot create seed checkpoints",
            todo="create it with torchtitan's CheckpointManager, and pass its path as checkpoint.initial_load_path",
        )
    unknown = sorted(set(config.exclude_from_loading) - {*states, RNG})
    if unknown:
        raise ConfigError(
            "impossible value for exclude_from_loading",
            expected=f"some of {', '.join(sorted({*states, RNG} - {MODEL}))}",
            found=", ".join(unknown),
        )
    initial = config.initial_load_path
    if initial and not filesystem.is_remote(initial) and any(Path(initial).glob("step-*/manifest")):
        raise ConfigError(
            "the initial load supports torchtitan's and Hugging Face's formats only",
            found=f"{initial}, a checkpoint directory of deeppart",
            todo=f"deeppart export {initial} FOLDER --to dcp; or set checkpoint.folder to it, to continue training",
        )
