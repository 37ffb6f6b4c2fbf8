"""Checkpoints for the Trainer of Hugging Face transformers 5: a callback that saves and resumes.

saving = DeeppartCallback(every=50)
trainer.add_callback(saving)
trainer.train(resume_from_checkpoint=saving.resume(trainer))
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deeppart import Checkpointer, Config
from deeppart.errors import ConfigError, StateError
from deeppart.interop.saving import Saving, refuse, require
from deeppart.interop.training_state import rng_state, set_rng_state
from deeppart.types import PerRank

require("transformers", "5", "deeppart.interop.transformers")

from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState

#: Read by ``Trainer.train(resume_from_checkpoint=...)`` from that folder.
_STATE_FILE = "trainer_state.json"
#: Methods of the Trainer that read its own checkpoint files.
_READERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")


#: Policies on another world size.
_PROGRESS: PerRank = {"progress/*": "rank0"}


class DeeppartCallback(TrainerCallback):
    """Saves and resumes a Trainer's training run: in one process, or with DDP.

    A checkpoint holds model, optimizer, scheduler, gradient scaler, the ``TrainerState`` with its log and callback
    states, the loss not yet logged, and each rank's random generators. The Trainer derives the data position from the
    step. A checkpoint is made once its step has been logged and evaluated. The last step is always saved.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``.
        every: optimizer steps between calls of ``checkpoint()``; 1 with ``Config(every="auto")``.
        sigterm: on SIGTERM, save after the current step and stop training.

    Attributes:
        stopped: True if SIGTERM has ended the training.

    Raises:
        ConfigError: ``every`` is not a number of steps.
    """

    def __init__(
        self, checkpointer: Checkpointer | Config | None = None, *, every: int = 1, sigterm: bool = True
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

        Model and optimizer are restored now, the rest while ``train()`` starts. On another world size all ranks get
        rank 0's state, as from the Trainer's own checkpoints; random generators keep their seeds.

        Args:
            trainer: the Trainer that has this callback.
            per_rank: policies for rank-local leaves on another world size, as for
                :meth:`deeppart.Checkpointer.restore`: ``{"rng/*": "strict"}``. The Trainer's progress is rank 0's.
            required: raise an error if there is no checkpoint.

        Returns:
            The value for ``trainer.train(resume_from_checkpoint=...)``; None if there is no checkpoint.

        Raises:
            ConfigError: a feature of the Trainer is not supported.
            DeeppartError: as for :meth:`deeppart.Checkpointer.restore`.
        """
        _check(trainer, self)
        self._trainer, self._resumed = trainer, None
        state = {"model": trainer.model, "optimizer": trainer.create_optimizer()}
        state |= {"scheduler": {}, "scaler": {}, "rng": {}, "progress": {}}
        step = self._saving.restore(state, per_rank=per_rank, overrides=_PROGRESS, required=required)
        if step is None:
            return None
        self._resumed = _Resumed(trainer, step, state)
        return self._resumed.folder

    # --- called by the Trainer ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish resuming, and handle SIGTERM."""
        if self._trainer is None:
            raise StateError(
                "this callback does not know its Trainer",
                todo="call trainer.train(resume_from_checkpoint=callback.resume(trainer))",
            )
        if (resumed := self._resumed) is not None:
            resumed.finish(state.global_step)
        self._saving.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record the step, which is not logged yet."""
        self._saving.stepped(state.global_step)
        if self._saving.stopped:
            control.should_training_stop = True
        return control

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save if due: a restart, too, draws the random numbers for loading this batch before this call."""
        self._save_if_due()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save if due: a restart sets the random generators before it iterates the data."""
        self._save_if_due()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save after SIGTERM: no step follows."""
        if self._saving.stopped:
            self._save_if_due()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is no hang."""
        self._saving.is_alive()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the last step and close."""
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
                "loss": trainer._tr_loss.item(),  # no tensor, of which ranks are warned when they come to differ
                "logged": trainer._globalstep_last_logged,
                "flos": trainer.current_flos,
            },
        }


class _Resumed:
    """Loads a checkpoint into a Trainer by replacing the methods that read the Trainer's own files.

    Model and optimizer are already restored. The Trainer takes :attr:`folder` for one of its checkpoints.
    """

    def __init__(self, trainer: Any, step: int, state: dict[str, Any]) -> None:
        self._trainer, self._step, self._state = trainer, step, state
        # The Trainer creates the scheduler later, which resets the learning rates.
        groups = trainer.optimizer.param_groups
        self._groups = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        self._temporary = tempfile.TemporaryDirectory(prefix="deeppart-trainer-state-")
        self.folder = self._temporary.name
        Path(self.folder, _STATE_FILE).write_text(state["progress"]["trainer_state"], encoding="utf-8")
        readers = (lambda *_, **__: None, self._optimizer_and_scheduler, self._scaler, self._rng)
        for name, reader in zip(_READERS, readers, strict=True):
            setattr(trainer, name, reader)

    def finish(self, step: int) -> None:
        """Restore the Trainer's loss and counters."""
        trainer, progress = self._trainer, self._state["progress"]
        self._temporary.cleanup()
        if step != self._step:
            raise StateError(
                "a checkpoint was restored, but the Trainer does not continue from it",
                expected=f"training from step {self._step}",
                found=f"training from step {step}",
                todo="call trainer.train(resume_from_checkpoint=callback.resume(trainer))",
            )
        trainer._tr_loss += progress["loss"]
        trainer._globalstep_last_logged = progress["logged"]
        trainer.current_flos = progress["flos"]
        # As after the Trainer's own restart, its final mean covers the steps of this call only.
        trainer._total_loss_scalar -= progress["loss"]

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
        for name in _READERS:  # called last
            vars(self._trainer).pop(name, None)


def _trainer_state(trainer: Any) -> str:
    """The Trainer's progress as JSON in its own format, without what needlessly differs between ranks."""
    exported = [
        each for each in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(each, ExportableState)
    ]
    states = TrainerState(stateful_callbacks=exported).stateful_callbacks
    found = replace(trainer.state, stateful_callbacks=states, is_local_process_zero=True, is_world_process_zero=True)
    return json.dumps(asdict(found), sort_keys=True)


def _check(trainer: Any, callback: DeeppartCallback) -> None:
    """Reject unsupported features."""
    found = [
        (trainer.is_deepspeed_enabled, "DeepSpeed"),
        (trainer.is_fsdp_enabled, "FSDP"),
        (getattr(trainer, "is_distributed_loading_by_transformers", False), "a model that is distributed at load time"),
        (trainer.model_init is not None, "model_init, which creates another model in train()"),
        (trainer.args.auto_find_batch_size, "auto_find_batch_size"),
        (trainer.args.n_gpu > 1, "torch.nn.DataParallel"),
    ]
    refuse(
        "DeeppartCallback does not support features of this Trainer",
        found,
        expected="a model in one process, or replicated with DDP",
        todo="for sharded models, call deeppart in your own training loop: see docs/quickstart.md, sharded states",
    )
    if callback not in trainer.callback_handler.callbacks:
        raise ConfigError("the Trainer does not have this callback", todo="call trainer.add_callback(callback) first")
