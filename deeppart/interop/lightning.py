"""Checkpoints for PyTorch Lightning: a callback that saves and resumes.

trainer = lightning.Trainer(callbacks=[DeeppartCallback(every=50)])
trainer.fit(model, loader)  # resumes from the newest checkpoint
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

#: Small entries of a Lightning checkpoint whose structure changes between steps or ranks; they are packed as text.
_SMALL = ("loops", "callbacks", "lr_schedulers", "epoch", "global_step", "pytorch-lightning_version")
#: Entries with which Lightning can create a module from a file alone; not needed here.
_HYPER_PARAMETERS = (
    "hyper_parameters",
    "hparams_name",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
    "datamodule_hparams_type",
)


class DeeppartCallback(Callback):
    """Saves a Lightning training run, and resumes it when ``fit()`` begins: on one device, or with DDP.

    A checkpoint holds what Lightning's own does (module, optimizers, schedulers, loop progress, states of callbacks,
    the data module, the precision plugin and stateful data loaders) and each rank's random generators, but no
    hyperparameters. It is made after a training step; after validation, if that follows the step; after the first step
    of the next epoch, if the step ends an epoch. The last step is always saved.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``.
        every: optimizer steps (``trainer.global_step``) between calls of ``checkpoint()``; 1 with
            ``Config(every="auto")``.
        per_rank: policies for rank-local leaves on another world size, as for ``Checkpointer.restore``. By default
            random generators keep their seeds, data positions that differ between ranks are an error
            (``{"data": "drop"}`` restarts the epoch), and everything else is rank 0's, as in Lightning's checkpoints.
        sigterm: on SIGTERM, save after the current step and stop training.

    Attributes:
        stopped: True if SIGTERM has ended the training.

    Raises:
        ConfigError: ``every`` is not a number of steps; from ``fit()``: the strategy shards the model.
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

    # --- called by the Trainer ---

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the newest checkpoint, and hand it to Lightning, which restores the rest after this call."""
        refuse(
            "this strategy of Lightning is not supported",
            [(not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy), type(trainer.strategy).__name__)],
            expected="a single device, or DDP",
            todo="for sharded models, call deeppart in your own training loop: see docs/quickstart.md, sharded states",
        )
        state: dict[str, Any] = {"tensors": {}, "small": "", "data": "", "rng": {}}
        self._rng, self._positions = None, []
        if self._saving.restore(state, per_rank=self._per_rank, overrides={"small": "rank0"}) is not None:
            checkpoint = state["tensors"] | unpack(state["small"], "a checkpoint of Lightning")
            self._positions = unpack(state["data"], "positions in the data") if state["data"] else []
            connector = trainer._checkpoint_connector
            connector._loaded_checkpoint = checkpoint
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()
            self._rng = state["rng"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the data position, and handle SIGTERM: Lightning's own handler might interrupt a collective."""
        self._step = trainer.global_step
        _check_order(trainer)
        if self._positions:
            _set_positions(trainer, self._positions)
            self._positions = []
        self._saving.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """After a restart, restore random generators at the first batch: everything before it may draw numbers."""
        if self._rng is not None:
            set_rng_state(self._rng)
            self._rng = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if due, unless validation or the end of the epoch follows; gradient accumulation makes no step."""
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        self._saving.stepped(step)
        loop = trainer.fit_loop.epoch_loop
        ends_epoch = loop.batch_progress.is_last_batch and trainer.num_training_batches > 1
        save_later = ends_epoch or loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        if self._saving.stopped or not save_later:
            self._saving.save_if_due(lambda: _state(trainer), step)
        if self._saving.stopped:
            trainer.should_stop = True

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """A validation is no hang."""
        self._saving.is_alive()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the step before the validation, within an epoch."""
        if not trainer.sanity_checking and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._saving.save_if_due(lambda: _state(trainer), trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step and close."""
        self._saving.finish(lambda: _state(trainer), trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close after an error."""
        self._saving.close(exception)


def _state(trainer: Any) -> dict[str, Any]:
    """Lightning's checkpoint and the random generators."""
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    small = {name: checkpoint.pop(name) for name in _SMALL if name in checkpoint}
    for name in _HYPER_PARAMETERS:
        checkpoint.pop(name, None)
    data = small["loops"]["fit_loop"]["state_dict"].pop("combined_loader", [])
    packed = {"small": pack(small, "checkpoint"), "data": pack(data, "positions in the data")}
    return {"tensors": checkpoint, **packed, "rng": rng_state()}


def _set_positions(trainer: Any, positions: list[Any]) -> None:
    """Restore loader positions after setting the samplers' epoch, on which a DistributedSampler's order depends."""
    loop = trainer.fit_loop
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    loop._combined_loader._load_state_dicts(positions)
    iter(loop._data_fetcher)


def _check_order(trainer: Any) -> None:
    """Reject stateful loaders whose order cannot be reproduced.

    Lightning wraps a shuffling StatefulDataLoader in a sampler that draws a random order on each rank.
    """
    for loader in trainer.fit_loop._combined_loader.flattened:
        sampler = getattr(loader, "sampler", None)
        if hasattr(loader, "state_dict") and isinstance(sampler, DistributedSamplerWrapper):
            raise ConfigError(
                "the order of the training data cannot be reproduced after a restart",
                expected="a loader with a DistributedSampler",
                found=f"a {type(loader).__name__} with a {type(sampler).__name__} from Lightning",
                todo="StatefulDataLoader(..., sampler=DistributedSampler(data, ranks, rank)), in train_dataloader()",
            )
