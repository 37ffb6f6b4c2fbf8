"""Checkpoints for torchtitan, version 0.3: a checkpoint manager, which its Trainer calls.

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
from deeppart.interop.training_state import (
    go_to,
    own_generator,
    pack,
    position,
    rng_state,
    set_rng_state,
    unpack,
)

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

#: What is saved beside torchtitan's own states: the random generators of each rank.
RNG = "rng"
#: Where torchtitan's own manager writes the model alone, at the end: beside the folder of the checkpoints.
EXPORTS = "-export"


class CheckpointManager(BaseCheckpointManager):
    """Saves and resumes torchtitan's training with deeppart: any of its parallelisms.

    A checkpoint holds the model, the optimizers as torchtitan flattens them (by names of parameters), learning rate
    schedulers, the states that the trainer gives (steps and tokens), and for each rank its random generators and the
    position in the data. It is made in the background whenever torchtitan's manager would make one, and at the last
    step. Tensors are restored to any layout, on any number of ranks; positions in the data to the same degree of data
    parallelism.

    What is for other programs is left to torchtitan's own manager: the initial load (``initial_load_path``, Hugging
    Face weights), and the model alone at the last step (``last_save_model_only``), which is written to
    ``<folder>-export``. The last step is saved whole as well, so that training can go on from it.

    Settings other than those of :class:`Config` are those of the environment and ``deeppart.toml``. The directory is
    torchtitan's ``<dump_folder>/<folder>``.

    Raises:
        ConfigError: the folder is remote; a seed checkpoint is asked for; ``exclude_from_loading`` has unknown names;
            the initial load is one of deeppart's directories.

    Example:
        >>> from deeppart.interop.torchtitan import CheckpointManager  # doctest: +SKIP
        >>> trainer_config.checkpoint = CheckpointManager.Config(enable=True, interval=50)  # doctest: +SKIP
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        """torchtitan's options for checkpoints, and one more."""

        per_rank: Literal["strict", "rank0", "drop"] | dict[str, Literal["strict", "rank0", "drop"]] = field(
            default_factory=dict
        )
        """What becomes of leaves of each rank on another number of ranks, as in ``Checkpointer.restore``. What it does
        not name: random generators begin anew, and all else that differs between ranks is an error."""

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

    # --- what BaseCheckpointManager calls ---

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        """Restore a step, or the newest; without any, do torchtitan's initial load."""
        fresh = [optimizer for optimizer in self.states[OPTIMIZER] if not optimizer.state]
        state = self._live()
        names = tuple(state)  # restore may add what the checkpoint has beside these
        wanted, others = None if step == -1 else step, {f"{RNG}/*": "drop"}
        found = self._saving.restore(state, wanted, self._config.per_rank, others=others)
        if found is not None:
            self._put({name: state[name] for name in names})
            return True
        for optimizer in fresh:  # its state was made to be looked at, by a step of Adam that would count
            optimizer.state.clear()
        if step != -1:
            raise RestoreError(
                "the step to load is not there", expected=f"step {step}", found="no checkpoint", where=self.folder
            )
        # an empty folder, so that it does not search for steps itself
        native = self._native(filesystem.join(self.folder, "none"))
        return bool(native.load())

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save if it is due; returns when the state may change."""
        if not self._is_due(curr_step, last_step):
            return False
        pending = self._saving.save(self._state, curr_step, force=last_step)
        self.save_future = _Saving(pending) if pending.levels else None
        if last_step and self._config.last_save_model_only:
            self._native(self.folder + EXPORTS).save(curr_step, last_step=True)
        return bool(pending.levels)

    def _maybe_wait_for_staging(self) -> None:
        """Nothing: ``checkpoint()`` has returned, so the state may change; a lazy copy holds the optimizer's step."""

    def _wait_for_saving(self) -> None:
        assert self.save_future is not None
        waited, self.save_future = self.save_future, None
        waited.result()

    def _close(self) -> None:
        """Finish what is in the background; after an error, do not wait for the other ranks."""
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
            state[_name_of_position(loader)] = pack(position(loader), DATALOADER)
        return state | {RNG: rng_state()}

    def _live(self) -> dict[str, Any]:
        """What is restored into: tensors in place."""
        left_out = self._config.exclude_from_loading
        wanted = {name: each for name, each in self.states.items() if name not in left_out and each is not None}
        state = {name: each.state_dict() for name, each in wanted.items() if name != DATALOADER}
        if DATALOADER in wanted:
            state[_name_of_position(wanted[DATALOADER])] = ""
        return state if RNG in left_out else state | {RNG: {}}

    def _put(self, state: dict[str, Any]) -> None:
        """Give each object what was restored."""
        for name, restored in state.items():
            if name in self.states:
                self.states[name].load_state_dict(restored)
            elif name != RNG:
                go_to(self.states[DATALOADER], unpack(restored, "the position in the data"))
        if RNG in state:
            set_rng_state(state[RNG])

    def _native(self, folder: str) -> Any:
        """torchtitan's own manager, for what is in its formats."""
        from torchtitan.components.checkpointer.dcp import CheckpointManager as Native

        names = [field.name for field in fields(BaseCheckpointManager.Config)]
        given = {name: getattr(self._config, name) for name in names}
        left_out = [name for name in self._config.exclude_from_loading if name != RNG]  # which it does not know
        config = Native.Config(**given | {"keep_latest_k": 0, "exclude_from_loading": left_out})
        native = Native(config, states=dict(self.states), **self._parts)
        native.folder = folder
        return native


class _Saving(Future[None]):
    """A checkpoint under way, as torchtitan asks for it."""

    def __init__(self, pending: Pending) -> None:
        super().__init__()
        self._pending = pending

    def done(self) -> bool:
        return self._pending.finished

    def result(self, timeout: float | None = None) -> None:
        for level in sorted(self._pending.levels):
            self._pending.wait(level, timeout)


def _settings(folder: str, keep: int) -> Settings:
    """The settings of the environment and the file, with torchtitan's folder and number of steps."""
    found = Settings(persistent_dir=folder)
    # Stages of a pipeline have other parameters, ranks with other data other positions.
    replicated = "parts" if found.replicated == "auto" else found.replicated
    return replace(found, keep={**found.keep, "persistent": keep}, replicated=replicated)


def _name_of_position(loader: Any) -> str:
    """Says whose the position in the data is: ranks of one group of data parallelism have the same.

    With another number of groups the names are others, so that the checkpoint lacks the position: an error. It stands
    outermost, as a dict of small values would become the saved one, without the name that is asked for.
    """
    return f"{DATALOADER}_dp_rank_{getattr(loader, 'dp_rank', 0)}_of_{getattr(loader, 'dp_world_size', 1)}"


def _check(config: Any, folder: str, states: dict[str, Any]) -> None:
    """Refuse by name what cannot be done."""
    if filesystem.is_remote(folder):
        raise ConfigError(
            "checkpoints go to a directory", expected="a path", found=folder, todo="set checkpoint.folder"
        )
    if config.create_seed_checkpoint:
        raise ConfigError(
            "seed checkpoints are torchtitan's own",
            expected="create_seed_checkpoint with torchtitan's CheckpointManager",
            found="create_seed_checkpoint with deeppart's",
            todo="make it so, and give its path as checkpoint.initial_load_path",
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
            "the initial load reads torchtitan's and Hugging Face's formats",
            found=f"{initial}, a directory of deeppart's",
            todo=f"deeppart export {initial} FOLDER --to dcp, or give it as checkpoint.folder to go on from it",
        )
