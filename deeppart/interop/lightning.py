"""Checkpoints for the Trainer of PyTorch Lightning: one callback, which saves and resumes.

trainer = lightning.Trainer(callbacks=[DeeppartCallback(every=50)])
trainer.fit(model, loader)  # goes on from the newest checkpoint
"""

from __future__ import annotations

from typing import Any

from deeppart import Checkpointer, Config
from deeppart.errors import ConfigError
from deeppart.interop.saving import Saving, refuse, require
from deeppart.interop.training_state import pack, rng_state, set_rng_state, unpack
from deeppart.types import PerRank

require("lightning", "2.6", "deeppart.interop.lightning")

from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

#: What Lightning puts into a checkpoint that is small, and of another structure at other steps or on other ranks:
#: progress of the loops, states of callbacks.
_SMALL = ("loops", "callbacks", "lr_schedulers", "epoch", "global_step", "pytorch-lightning_version")
#: What it needs to make a module of a file alone.
_HYPER_PARAMETERS = (
    "hyper_parameters",
    "hparams_name",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
    "datamodule_hparams_type",
)


class DeeppartCallback(Callback):
    """Saves a Lightning training with deeppart, and resumes it when ``fit()`` begins: on one device, or with DDP.

    A checkpoint holds what Lightning's own would (module, optimizers, schedulers, progress of the loops, states of
    callbacks, of the data module, of the precision plugin and of stateful data loaders) and each rank's random
    generators, but no hyperparameters. It is made after a training step. If validation follows that step, after the
    validation; if it is the last one of an epoch, after the first step of the next epoch. There is one at the end.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``.
        every: steps of the optimizers (``trainer.global_step``) from one call of ``checkpoint()`` to the next; 1 with
            ``Config(every="auto")``.
        per_rank: what becomes of leaves of each rank on another number of ranks, as of ``Checkpointer.restore``. What
            it does not name: random generators begin anew, positions in the data that differ between ranks are an error
            (``{"data": "drop"}`` begins the epoch anew), and all else is rank 0's, as in Lightning's own checkpoints.
        sigterm: when SIGTERM comes, save after the step under way, and end the training.

    Attributes:
        stopped: True if SIGTERM has ended the training.

    Raises:
        ConfigError: ``every`` is no number of steps; in ``fit()``, the strategy keeps states that are not plain.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | Config | None = None,
        *,
        every: int = 1,
        per_rank: PerRank | None = None,
        sigterm: bool = True,
    ) -> None:
        self._saving = Saving(checkpointer, every, sigterm=sigterm)
        self._per_rank = per_rank
        self._rng: dict[str, Any] | None = None
        self._positions: list[Any] = []
        self._step = 0

    @property
    def stopped(self) -> bool:
        """True if SIGTERM has ended the training."""
        return self._saving.stopped

    # --- what the Trainer calls ---

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Model and optimizers are made; what Lightning restores of a file's it takes after this from what it has."""
        refuse(
            "this strategy of Lightning is not supported",
            [(not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy), type(trainer.strategy).__name__)],
            expected="a single device, or DDP",
            todo="for sharded models, write the loop yourself: see docs/quickstart.md, sharded states",
        )
        state: dict[str, Any] = {"tensors": {}, "small": "", "data": "", "rng": {}}
        self._rng, self._positions = None, []
        if self._saving.restore(state, per_rank=self._per_rank, first={"small": "rank0"}) is not None:
            checkpoint = state["tensors"] | unpack(state["small"], "a checkpoint of Lightning")
            self._positions = unpack(state["data"], "positions in the data") if state["data"] else []
            connector = trainer._checkpoint_connector
            connector._loaded_checkpoint = checkpoint
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()
            self._rng = state["rng"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins or continues. SIGTERM is handled here: Lightning might interrupt a collective."""
        self._step = trainer.global_step
        _check_order(trainer)
        if self._positions:
            _go_on_in_data(trainer, self._positions)
            self._positions = []
        self._saving.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch was loaded. After a restart, all that draws random numbers before the first one has done so."""
        if self._rng is not None:
            set_rng_state(self._rng)
            self._rng = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch was trained; a step of the optimizer was made unless gradients are accumulated."""
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        self._saving.stepped(step)
        loop = trainer.fit_loop.epoch_loop
        ends_epoch = loop.batch_progress.is_last_batch and trainer.num_training_batches > 1
        waits = ends_epoch or loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        if self._saving.stopped or not waits:
            self._saving.save_if_due(lambda: _state(trainer), step)
        if self._saving.stopped:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation ends; within an epoch, a step can be saved that it followed."""
        if not trainer.sanity_checking and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._saving.save_if_due(lambda: _state(trainer), trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training ends."""
        self._saving.finish(lambda: _state(trainer), trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training was ended by an error."""
        self._saving.close(exception)


def _state(trainer: Any) -> dict[str, Any]:
    """What Lightning would write to a file, and the random generators."""
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    small = {name: checkpoint.pop(name) for name in _SMALL if name in checkpoint}
    for name in _HYPER_PARAMETERS:
        checkpoint.pop(name, None)
    data = small["loops"]["fit_loop"]["state_dict"].pop("combined_loader", [])
    packed = {"small": pack(small, "checkpoint"), "data": pack(data, "positions in the data")}
    return {"tensors": checkpoint, **packed, "rng": rng_state()}


def _go_on_in_data(trainer: Any, positions: list[Any]) -> None:
    """Set the loaders to where they were.

    Lightning does so before it tells samplers the epoch, by which a DistributedSampler orders the data.
    """
    loop = trainer.fit_loop
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    loop._combined_loader._load_state_dicts(positions)
    iter(loop._data_fetcher)


def _check_order(trainer: Any) -> None:
    """Refuse loaders with a position in an order that nothing can make again.

    Lightning wraps a shuffling StatefulDataLoader so that each rank draws an order with its own random numbers.
    """
    for loader in trainer.fit_loop._combined_loader.flattened:
        sampler = getattr(loader, "sampler", None)
        if hasattr(loader, "state_dict") and isinstance(sampler, DistributedSamplerWrapper):
            raise ConfigError(
                "the order of the training data cannot be made again after a restart",
                expected="a loader whose sampler is a DistributedSampler",
                found=f"a {type(loader).__name__} that Lightning has given a {type(sampler).__name__}",
                todo="StatefulDataLoader(..., sampler=DistributedSampler(data, ranks, rank)), in train_dataloader()",
            )
