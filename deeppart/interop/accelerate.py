"""Checkpoints for loops that are written with Hugging Face Accelerate, instead of ``save_state`` and ``load_state``.

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

#: Distributions in which a model is in one process, or the same on every rank.
_PLAIN = {"NO", *(f"MULTI_{kind}" for kind in ("CPU", "GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU"))}


class DeeppartAccelerate:
    """Saves and restores what an Accelerator has prepared: in one process, or with DDP.

    That is what ``accelerator.save_state`` saves: models, optimizers, schedulers, the gradient scaler, objects of
    ``register_for_checkpointing``, random generators of each rank; with ``use_stateful_dataloader`` the positions of
    data loaders; and beside these how often each was gone through. To resume in the middle of an epoch bit for bit, the
    loaders must be stateful and their order known by seed and epoch::

        DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)

    Loaders that draw a seed from the process's random numbers whenever they begin get a generator of their own for
    that, since a restart begins once more.

    Args:
        accelerator: an Accelerator after ``prepare()``.
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``, for one that :meth:`close` closes.

    Raises:
        ConfigError: the Accelerator shards models, or leaves them to another library.
    """

    def __init__(self, accelerator: Any, checkpointer: Checkpointer | Config | None = None) -> None:
        kind = accelerator.distributed_type
        refuse(
            "this distribution of Accelerate is not supported",
            [(kind.name not in _PLAIN, str(kind))],
            expected="one process, or DDP",
            todo="for sharded models, put model and optimizer into a state of your own: see docs/quickstart.md",
        )
        self._accelerator = accelerator
        self._saving = Saving(checkpointer)
        for loader in accelerator._dataloaders:
            own_generator(_base(loader))

    @property
    def checkpointer(self) -> Checkpointer:
        """The one in use; opened now if it has to be (collective)."""
        return self._saving.checkpointer

    def save(self, step: int, *, force: bool = False) -> Pending:
        """Save (collective); as :meth:`deeppart.Checkpointer.checkpoint`."""
        return self._saving.save(self._state, step, force=force)

    def restore(
        self, step: int | None = None, per_rank: PerRank | None = None, *, required: bool = False
    ) -> int | None:
        """Restore what was saved (collective); as :meth:`deeppart.Checkpointer.restore`.

        Loaders that are stateful go on where they were when they are iterated next. On another number of ranks, all get
        what rank 0 had, as from ``accelerator.load_state``; random generators begin anew, and positions in the data
        that differ between ranks are an error: ``per_rank={"data": "drop"}`` begins the epoch anew.

        Args:
            step: which one; None for the newest that can be recovered.
            per_rank: what else becomes of leaves of each rank on another number of ranks.
            required: True: it is an error if there is no checkpoint.

        Returns:
            The step restored, or None if there is no checkpoint.
        """
        loaders = self._accelerator._dataloaders
        state = self._objects() | {"loops": "", "data": "", "schedulers": []}
        state["rng"] = {"process": {}, "loaders": [_base(loader).generator for loader in loaders]}
        found = self._saving.restore(state, step, per_rank, first={"loops": "rank0"}, required=required)
        if found is None:
            return None
        for scheduler, saved in zip(self._accelerator._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        loops = unpack(state["loops"], "loops of Accelerate")
        self._accelerator.step = loops["step"]
        positions = unpack(state["data"], "positions in the data") if state["data"] else [None] * len(loaders)
        for loader, iteration, position in zip(loaders, loops["iterations"], positions, strict=True):
            _go_to(loader, iteration, position)
        set_rng_state(state["rng"]["process"])
        return found

    def close(self) -> None:
        """Wait for what is in the background, if this object opened the Checkpointer (collective)."""
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
        """What is restored in place."""
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
    """How often it was gone through."""
    iteration: int | None = getattr(loader, "iteration", None)
    if iteration is not None and loader.end_of_dataloader and _is_iterated(loader):
        iteration += 1  # its last batch was yielded; it counts when the next one is requested
    return iteration


def _position(loader: Any) -> Any:
    return loader.state_dict() if getattr(loader, "use_stateful_dataloader", False) else None


def _is_iterated(loader: Any) -> bool:
    return any(each is loader for each in loader.gradient_state.dataloader_references)


def _go_to(loader: Any, iteration: int | None, position: Any) -> None:
    if iteration is not None:
        loader.set_epoch(iteration)
    if position is not None and getattr(loader, "use_stateful_dataloader", False):
        loader.load_state_dict(position)
