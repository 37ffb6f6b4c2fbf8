"""Checkpoints for the Trainer of Hugging Face transformers, version 5: a callback that saves, and the way back.

saving = DeeppartCallback(every=50)
trainer.add_callback(saving)
trainer.train(resume_from_checkpoint=saving.resume(trainer))
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from deeppart import Checkpointer, Config
from deeppart.errors import ConfigError, StateError
from deeppart.interop.saving import Saving, refuse, require
from deeppart.interop.training_state import rng_state, set_rng_state
from deeppart.types import PerRank

require("transformers", "5", "deeppart.interop.transformers")

from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState

#: What ``Trainer.train(resume_from_checkpoint=...)`` reads in that folder by itself.
_STATE_FILE = "trainer_state.json"
#: Methods of the Trainer that read its own files after a restart.
_READERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")


def _mean(_path: str, old: Sequence[Any], _rank: int, _ranks: int) -> Any:
    """The loss that is not logged yet: what is logged is the mean over the ranks."""
    return torch.stack([each.double() for each in old]).mean(0).to(old[0].dtype)


#: On another number of ranks.
_PROGRESS: PerRank = {"progress/loss": _mean, "progress/*": "rank0"}


class DeeppartCallback(TrainerCallback):
    """Saves a Trainer's training with deeppart and resumes it: in one process, or with DDP.

    A checkpoint holds model, optimizer, scheduler, gradient scaler, the ``TrainerState`` with its log and the states of
    callbacks, the loss not logged yet, and each rank's random generators. The Trainer finds its place in the data by
    the step. A checkpoint due after a step is made when that step has been logged and evaluated, before the next one;
    and there is one at the end.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``.
        every: steps of the optimizer from one call of ``checkpoint()`` to the next; 1 with ``Config(every="auto")``.
        sigterm: when SIGTERM comes, save after the step under way, and end the training.

    Attributes:
        stopped: True if SIGTERM has ended the training.

    Raises:
        ConfigError: ``every`` is no number of steps.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | Config | None = None,
        *,
        every: int = 1,
        sigterm: bool = True,
    ) -> None:
        self._saving = Saving(checkpointer, every, sigterm=sigterm)
        self._trainer: Any = None
        self._resumed: _Resumed | None = None

    @property
    def stopped(self) -> bool:
        """True if SIGTERM has ended the training."""
        return self._saving.stopped

    def resume(self, trainer: Any, per_rank: PerRank | None = None, *, required: bool = False) -> str | None:
        """Restore the newest checkpoint (collective); call it before each ``train()``.

        Model and optimizer are restored now, the rest as the Trainer comes to it. On another number of ranks, all get
        what rank 0 had, as from the Trainer's own checkpoints; random generators begin anew.

        Args:
            trainer: the Trainer that has this callback.
            per_rank: what else becomes of leaves of each rank on another number of ranks, as of
                :meth:`deeppart.Checkpointer.restore`: ``{"rng/*": "strict"}``. The Trainer's progress is rank 0's.
            required: True: it is an error if there is no checkpoint.

        Returns:
            What to pass as ``trainer.train(resume_from_checkpoint=...)``; None if there is no checkpoint.

        Raises:
            ConfigError: the Trainer does what this class cannot save.
            DeeppartError: as of :meth:`deeppart.Checkpointer.restore`.
        """
        _check(trainer, self)
        self._trainer, self._resumed = trainer, None
        state = {"model": trainer.model, "optimizer": trainer.create_optimizer()}
        state |= {"scheduler": {}, "scaler": {}, "rng": {}, "progress": {}}
        step = self._saving.restore(state, per_rank=per_rank, first=_PROGRESS, required=required)
        if step is None:
            return None
        self._resumed = _Resumed(trainer, step, state)
        return self._resumed.folder

    # --- what the Trainer calls ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins."""
        if self._trainer is None:
            raise StateError(
                "this callback does not know its Trainer",
                todo="call trainer.train(resume_from_checkpoint=callback.resume(trainer))",
            )
        if (resumed := self._resumed) is not None:
            resumed.finish(state.global_step)
        self._saving.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A step of the optimizer was made; it is not logged yet."""
        self._saving.stepped(state.global_step)
        if self._saving.stopped:
            control.should_training_stop = True
        return control

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The next step begins: its batch was loaded, and a restart draws random numbers for that before it is here."""
        self._save_if_due()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The next epoch begins: a restart sets the random generators before it goes through the data."""
        self._save_if_due()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The epoch ends. After SIGTERM no step follows."""
        if self._saving.stopped:
            self._save_if_due()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training ends."""
        self._saving.finish(self._state, state.global_step)
        self._trainer, self._resumed = None, None

    def _save_if_due(self) -> None:
        self._saving.save_if_due(self._state, self._trainer.state.global_step)

    def _state(self) -> dict[str, Any]:
        trainer = self._trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "model": trainer.model,
            "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),  # without Accelerate's wrapper
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "rng": rng_state(),
            "progress": {
                "trainer_state": _trainer_state(trainer),
                "loss": trainer._tr_loss.detach().clone(),
                "logged": trainer._globalstep_last_logged,
                "flos": trainer.current_flos,
            },
        }


class _Resumed:
    """A checkpoint that is being loaded into a Trainer, in the order of the Trainer's own loading.

    Model and optimizer are restored already. The Trainer takes :attr:`folder` for one of its checkpoints.
    """

    def __init__(self, trainer: Any, step: int, state: dict[str, Any]) -> None:
        self._trainer, self._step, self._state = trainer, step, state
        # Making a scheduler sets learning rates to those of its first step.
        groups = trainer.optimizer.param_groups
        self._groups = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        self._temporary = tempfile.TemporaryDirectory(prefix="deeppart-trainer-state-")
        self.folder = self._temporary.name
        Path(self.folder, _STATE_FILE).write_text(state["progress"]["trainer_state"], encoding="utf-8")
        for name, reader in zip(
            _READERS, (_nothing, self._optimizer_and_scheduler, self._scaler, self._rng), strict=True
        ):
            setattr(trainer, name, reader)

    def finish(self, step: int) -> None:
        """Give the Trainer the loss that it has not logged, and restore its methods when training continues."""
        trainer, progress = self._trainer, self._state["progress"]
        self._temporary.cleanup()
        if step != self._step:
            raise StateError(
                "a checkpoint was restored, and the Trainer does not go on from it",
                expected=f"training from step {self._step}",
                found=f"training from step {step}",
                todo="call trainer.train(resume_from_checkpoint=callback.resume(trainer))",
            )
        trainer._tr_loss += progress["loss"].to(trainer._tr_loss.device)
        trainer._globalstep_last_logged = progress["logged"]
        trainer.current_flos = progress["flos"]
        # The mean at the end is of the steps of this call, as after the Trainer's own restart.
        trainer._total_loss_scalar -= float(progress["loss"])

    def _optimizer_and_scheduler(self, _folder: str | None) -> None:
        trainer = self._trainer
        trainer.lr_scheduler.load_state_dict(self._state["scheduler"])
        for group, saved in zip(trainer.optimizer.param_groups, self._groups, strict=True):
            group.update(saved)

    def _scaler(self, _folder: str | None) -> None:
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        if scaler is not None and self._state["scaler"]:
            scaler.load_state_dict(self._state["scaler"])

    def _rng(self, _folder: str | None) -> None:
        set_rng_state(self._state["rng"])
        for name in _READERS:  # this is the last one
            vars(self._trainer).pop(name, None)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The model is restored already."""


def _trainer_state(trainer: Any) -> str:
    """The Trainer's progress as the JSON text that it would save itself, the same on every rank as far as it can be."""
    exported = [
        each for each in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(each, ExportableState)
    ]
    states = TrainerState(stateful_callbacks=exported).stateful_callbacks
    found = replace(trainer.state, stateful_callbacks=states, is_local_process_zero=True, is_world_process_zero=True)
    return json.dumps(asdict(found), sort_keys=True)


def _check(trainer: Any, callback: DeeppartCallback) -> None:
    """Refuse by name what would be saved wrongly or not at all."""
    found = [
        (trainer.is_deepspeed_enabled, "DeepSpeed"),
        (trainer.is_fsdp_enabled, "FSDP"),
        (getattr(trainer, "is_distributed_loading_by_transformers", False), "a model that is distributed at load time"),
        (trainer.model_init is not None, "model_init, which makes another model in train()"),
        (trainer.args.auto_find_batch_size, "auto_find_batch_size"),
        (trainer.args.n_gpu > 1, "torch.nn.DataParallel"),
    ]
    refuse(
        "this Trainer is of a kind that DeeppartCallback cannot resume",
        found,
        expected="a model in one process, or the same on every rank with DDP",
        todo="for sharded models, write the loop yourself: see docs/quickstart.md, sharded states",
    )
    if callback not in trainer.callback_handler.callbacks:
        raise ConfigError("the Trainer does not have this callback", todo="call trainer.add_callback(callback) before")
