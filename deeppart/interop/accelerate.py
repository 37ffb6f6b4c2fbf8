"""Checkpoints for loops that are written with Hugging Face Accelerate, instead of ``save_state`` and ``load_state``.

checkpoints = DeeppartAccelerate(accelerator)  # after accelerator.prepare(...)
step = checkpoints.restore()
checkpoints.save(step)
"""

from __future__ import annotations

from typing import Any

import torch

from deeppart.checkpointer import Checkpointer
from deeppart.config import Config
from deeppart.errors import ConfigError
from deeppart.interop.training_state import pack, rng_state, set_rng_state, unpack
from deeppart.interop.versions import require
from deeppart.pending import Pending
from deeppart.state.tree.per_rank import PerRank

require("accelerate", "1.10", "deeppart.interop.accelerate")

from accelerate.utils import DistributedType

#: Where a model is in one process, or the same on every rank.
_PLAIN = frozenset(
    DistributedType(name)
    for name in (
        "NO",
        "MULTI_CPU",
        "MULTI_GPU",
        "MULTI_NPU",
        "MULTI_MLU",
        "MULTI_SDAA",
        "MULTI_MUSA",
        "MULTI_XPU",
        "MULTI_HPU",
    )
    if name in DistributedType.__members__
)


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
        per_rank: what becomes of random generators and positions on another number of ranks, as of
            ``Checkpointer.restore``.

    Raises:
        ConfigError: the Accelerator shards models, or leaves them to another library.
    """

    def __init__(
        self, accelerator: Any, checkpointer: Checkpointer | Config | None = None, *, per_rank: PerRank = "strict"
    ) -> None:
        _check(accelerator)
        self._accelerator = accelerator
        self._own = None if isinstance(checkpointer, Checkpointer) else Checkpointer(checkpointer)
        self.checkpointer = checkpointer if isinstance(checkpointer, Checkpointer) else self._own
        self._per_rank = per_rank
        for loader in accelerator._dataloaders:
            base = getattr(loader, "base_dataloader", loader)
            if base.generator is None:
                base.generator = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))

    def save(self, step: int, *, force: bool = False) -> Pending:
        """Save (collective); as :meth:`deeppart.Checkpointer.checkpoint`."""
        assert self.checkpointer is not None
        state = self._objects()
        loops = {
            "loaders": [_position(loader) for loader in self._accelerator._dataloaders],
            "step": self._accelerator.step,
        }
        state |= {"loops": pack(loops, "loops"), "rng": rng_state()}
        state["schedulers"] = [scheduler.state_dict() for scheduler in self._accelerator._schedulers]
        return self.checkpointer.checkpoint(state, step, force=force)

    def restore(self, step: int | None = None, *, required: bool = False) -> int | None:
        """Restore what was saved (collective); as :meth:`deeppart.Checkpointer.restore`.

        Loaders that are stateful go on where they were when they are iterated next.

        Args:
            step: which one; None for the newest that can be recovered.
            required: True: it is an error if there is no checkpoint.

        Returns:
            The step restored, or None if there is no checkpoint.
        """
        assert self.checkpointer is not None
        state = self._objects() | {"loops": "", "rng": {}, "schedulers": []}
        found = self.checkpointer.restore(state, step, per_rank=self._per_rank, required=required)
        if found is None:
            return None
        for scheduler, saved in zip(self._accelerator._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        loops = unpack(state["loops"], "loops of Accelerate")
        self._accelerator.step = loops["step"]
        for loader, position in zip(self._accelerator._dataloaders, loops["loaders"], strict=True):
            _set_position(loader, position)
        set_rng_state(state["rng"])
        return found

    def close(self) -> None:
        """Wait for what is in the background, if this object opened the Checkpointer (collective)."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> DeeppartAccelerate:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._own is not None:
            self._own.__exit__(*error)

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


def _position(loader: Any) -> dict[str, Any]:
    stateful = getattr(loader, "use_stateful_dataloader", False)
    generator = getattr(loader, "base_dataloader", loader).generator
    iteration = getattr(loader, "iteration", None)
    if iteration is not None and loader.end_of_dataloader and _is_iterated(loader):
        iteration += 1  # its last batch was given; it counts when it is asked for one more
    return {
        "iteration": iteration,
        "state": loader.state_dict() if stateful else None,
        "generator": generator.get_state(),
    }


def _is_iterated(loader: Any) -> bool:
    return any(each is loader for each in loader.gradient_state.dataloader_references)


def _set_position(loader: Any, position: dict[str, Any]) -> None:
    base = getattr(loader, "base_dataloader", loader)
    base.generator.set_state(position["generator"])
    if position["iteration"] is not None:
        loader.set_epoch(position["iteration"])
    if position["state"] is not None and getattr(loader, "use_stateful_dataloader", False):
        loader.load_state_dict(position["state"])


def _check(accelerator: Any) -> None:
    """Refuse by name what would be saved wrongly or not at all.

    Raises:
        ConfigError: the kind of distribution is not supported.
    """
    if accelerator.distributed_type not in _PLAIN:
        raise ConfigError(
            "this distribution of Accelerate is not supported",
            expected="one process, or DDP",
            found=str(accelerator.distributed_type),
            todo="for sharded models, put model and optimizer into a state of your own: see docs/quickstart.md",
        )
