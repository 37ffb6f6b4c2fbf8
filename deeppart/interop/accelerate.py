"""Checkpoints for Hugging Face Accelerate, in place of ``save_state`` and ``load_state``.

checkpoints = DeeppartAccelerate(accelerator)  # after accelerator.prepare(...)
step = checkpoints.restore()
checkpoints.save(step)
"""

from __future__ import annotations

from typing import Any

from deeppart import Checkpointer, Config, Pending
from deeppart.interop.saving import Saving, refuse, require
from deeppart.interop.training_state import own_generator, pack, rng_state, set_rng_state, unpack
from deeppart.types import PerRank

require("accelerate", "1.10", "deeppart.interop.accelerate")

#: Distribution types in which models are not sharded.
_UNSHARDED = {"NO", *(f"MULTI_{kind}" for kind in ("CPU", "GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU"))}


class DeeppartAccelerate:
    """Saves and restores everything an Accelerator has prepared: in one process, or with DDP.

    Saves what ``accelerator.save_state`` does (models, optimizers, schedulers, the gradient scaler, objects of
    ``register_for_checkpointing``, each rank's random generators, positions of stateful data loaders), and the number
    of epochs of each loader. To resume bit for bit within an epoch, loaders must be stateful and seedable::

        DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)

    Loaders that draw seeds from the process's random generator get their own one, since a restart draws once more.

    Args:
        accelerator: an Accelerator after ``prepare()``.
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``: :meth:`close` closes it then.

    Raises:
        ConfigError: the Accelerator shards models, or delegates them to another library.
    """

    def __init__(self, accelerator: Any, checkpointer: Checkpointer | Config | None = None) -> None:
        kind = accelerator.distributed_type
        refuse(
            "this distribution of Accelerate is not supported",
            [(kind.name not in _UNSHARDED, str(kind))],
            expected="one process, or DDP",
            todo="for sharded models, save model and optimizer with deeppart.checkpoint: see docs/quickstart.md",
        )
        self._accelerator = accelerator
        self._saving = Saving(checkpointer)
        for loader in accelerator._dataloaders:
            own_generator(_base(loader))

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer in use; opened at the first access (collective)."""
        return self._saving.checkpointer

    def save(self, step: int, *, force: bool = False) -> Pending:
        """Save a checkpoint (collective); see :meth:`deeppart.Checkpointer.checkpoint`."""
        return self._saving.save(self._state, step, force=force)

    def restore(
        self, step: int | None = None, per_rank: PerRank | None = None, *, required: bool = False
    ) -> int | None:
        """Restore a checkpoint (collective); see :meth:`deeppart.Checkpointer.restore`.

        Stateful loaders continue at their saved positions. On another world size all ranks get rank 0's state, as with
        ``accelerator.load_state``; random generators keep their seeds, and data positions that differ between ranks
        are an error unless ``per_rank={"data": "drop"}``, which restarts the epoch.

        Args:
            step: the step; None for the newest recoverable one.
            per_rank: policies for other rank-local leaves on another world size.
            required: raise an error if there is no checkpoint.

        Returns:
            The restored step, or None if there is no checkpoint.
        """
        loaders = self._accelerator._dataloaders
        state = self._objects() | {"loops": "", "data": "", "schedulers": []}
        state["rng"] = {"process": {}, "loaders": [_base(loader).generator for loader in loaders]}
        found = self._saving.restore(state, step, per_rank, overrides={"loops": "rank0"}, required=required)
        if found is None:
            return None
        for scheduler, saved in zip(self._accelerator._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        loops = unpack(state["loops"], "loops of Accelerate")
        self._accelerator.step = loops["step"]
        positions = unpack(state["data"], "positions in the data") if state["data"] else [None] * len(loaders)
        for loader, iteration, position in zip(loaders, loops["iterations"], positions, strict=True):
            _set_position(loader, iteration, position)
        set_rng_state(state["rng"]["process"])
        return found

    def close(self) -> None:
        """Finish background work, if this object opened the Checkpointer (collective)."""
        self._saving.close()

    def __enter__(self) -> DeeppartAccelerate:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._saving.close(error)

    def _state(self) -> dict[str, Any]:
        loaders = self._accelerator._dataloaders
        loops = {"iterations": list(map(_iteration, loaders)), "step": self._accelerator.step}
        return self._objects() | {
            "loops": pack(loops, "loops"),
            "data": pack(list(map(_position, loaders)), "positions in the data"),
            "rng": {"process": rng_state(), "loaders": [_base(loader).generator for loader in loaders]},
            "schedulers": [scheduler.state_dict() for scheduler in self._accelerator._schedulers],
        }

    def _objects(self) -> dict[str, Any]:
        """The objects that are restored in place."""
        accelerator = self._accelerator
        scaler = accelerator.scaler
        return {
            "models": [accelerator.unwrap_model(model, keep_torch_compile=False) for model in accelerator._models],
            "optimizers": [getattr(each, "optimizer", each) for each in accelerator._optimizers],
            "objects": list(accelerator._custom_objects),
            "scaler": {} if scaler is None else scaler,
        }


def _base(loader: Any) -> Any:
    return getattr(loader, "base_dataloader", loader)


def _iteration(loader: Any) -> int | None:
    """The number of completed epochs."""
    iteration: int | None = getattr(loader, "iteration", None)
    if iteration is not None and loader.end_of_dataloader:
        # Within the last batch the loader is still active, and has not counted the epoch yet.
        iteration += any(each is loader for each in loader.gradient_state.dataloader_references)
    return iteration


def _position(loader: Any) -> Any:
    return loader.state_dict() if getattr(loader, "use_stateful_dataloader", False) else None


def _set_position(loader: Any, iteration: int | None, position: Any) -> None:
    if iteration is not None:
        loader.set_epoch(iteration)
    if position is not None and getattr(loader, "use_stateful_dataloader", False):
        loader.load_state_dict(position)
