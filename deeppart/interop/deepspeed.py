"""Checkpoints for DeepSpeed, ZeRO 1 to 3: a checkpoint engine in the place of DeepSpeed's own.

checkpoints = CheckpointEngine(engine)  # after deepspeed.initialize(...)
client_state = checkpoints.resume()  # instead of engine.load_checkpoint(folder)
engine.save_checkpoint(folder)
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deeppart import Checkpointer, Config, Pending
from deeppart.errors import CheckpointError, ConfigError, DeeppartWarning, PerRankError
from deeppart.interop.saving import Saving, refuse, require
from deeppart.interop.training_state import (
    go_to,
    own_generator,
    pack,
    position,
    rng_state,
    set_rng_state,
    unpack,
)
from deeppart.types import PerRank

require("deepspeed", "0.18", "deeppart.interop.deepspeed")

from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointEngine as BaseCheckpointEngine,
)

#: What in the name of a file says which rank wrote it.
_RANK = re.compile(r"(zero_pp_rank_|mp_rank_)\d+")
_MODEL = "model_states.pt"
#: The files of a checkpoint end so. Others are for other programs: what save_16bit_model() writes.
_STATES = "_states.pt"


class CheckpointEngine(BaseCheckpointEngine):
    """Saves and resumes a DeepSpeed engine with deeppart: ZeRO 1 to 3, on the same number of ranks.

    It puts itself in the place of ``engine.checkpoint_engine``. What DeepSpeed would write to a file of each rank
    becomes one checkpoint, made in the background: weights that are the same on every rank are saved once and divided
    among the ranks, partitions per rank. With it go random generators and the positions of data loaders, per rank.
    The folder of ``save_checkpoint`` gets what DeepSpeed itself writes there (``latest``), and no states.

    DeepSpeed's partitions are flat and opaque: they come back on the same number of ranks only.

    Args:
        engine: what ``deepspeed.initialize`` gave.
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``, for one that :meth:`close` closes.
        loaders: name -> data loader with ``state_dict()``, whose position is saved: torchdata's StatefulDataLoader.

    Attributes:
        pending: the last checkpoint, or None.

    Raises:
        ConfigError: the engine does what is not supported.

    Example:
        >>> from deeppart.interop.deepspeed import CheckpointEngine  # doctest: +SKIP
        >>> checkpoints = CheckpointEngine(engine)  # doctest: +SKIP
        >>> client_state = checkpoints.resume()  # None if there is no checkpoint  # doctest: +SKIP
        >>> engine.save_checkpoint("out")  # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Any,
        checkpointer: Checkpointer | Config | None = None,
        *,
        loaders: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = "deeppart"
        _check(engine)
        self._engine, self._loaders = engine, dict(loaders or {})
        for name, loader in self._loaders.items():
            _check_loader(name, loader)
            own_generator(loader)
        self._saving = Saving(checkpointer)
        self.pending: Pending | None = None
        self._saved: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}
        engine.checkpoint_engine = self
        engine.save_non_zero_checkpoint = True  # for all ranks; set by the engine's configuration otherwise

    @property
    def checkpointer(self) -> Checkpointer:
        """The one in use; opened now if it has to be (collective)."""
        return self._saving.checkpointer

    def resume(self, step: int | None = None, per_rank: PerRank | None = None, **how: Any) -> dict[str, Any] | None:
        """Restore a checkpoint into the engine, the loaders and the random generators (collective).

        Args:
            step: which one; None for the newest that can be recovered.
            per_rank: as of :meth:`deeppart.Checkpointer.restore`; of DeepSpeed's own states nothing can be said.
            how: for ``engine.load_checkpoint``.

        Returns:
            The saved ``client_state``; None if there is no checkpoint.

        Raises:
            PerRankError: it was saved by another number of ranks; no ``per_rank`` helps there.
            DeeppartError: as of :meth:`deeppart.Checkpointer.restore`; the engine is unchanged.
        """
        state: dict[str, Any] = {"files": {}, "tag": "", "data": "", "rng": {}}
        own, rng = {"files/*": "strict"}, {"rng/*": "drop"}
        try:
            if self._saving.restore(state, step, per_rank, first=own, others=rng) is None:
                return None
        except PerRankError as error:
            error.todo = "restart on as many ranks as saved it: DeepSpeed's partitions are flat and opaque"
            raise
        self._restored = state["files"]
        try:
            with tempfile.TemporaryDirectory(prefix="deeppart-deepspeed-") as folder:
                self._write_markers(Path(folder, state["tag"]))
                _, client_state = self._engine.load_checkpoint(folder, state["tag"], **how)
        finally:
            self._restored = {}
        positions = unpack(state["data"], "positions in the data")
        for name, saved in positions.items():
            if name in self._loaders:
                go_to(self._loaders[name], saved)
        if lacking := sorted(self._loaders.keys() - positions.keys()):
            warnings.warn(
                f"data loaders begin anew, as the checkpoint has no position of them: {', '.join(lacking)} "
                f"(it has: {', '.join(sorted(positions)) or 'none'})",
                DeeppartWarning,
                stacklevel=2,
            )
        set_rng_state(state["rng"])
        found: dict[str, Any] = client_state
        return found

    def close(self) -> None:
        """Wait for what is in the background, if this object opened the Checkpointer (collective)."""
        self._saving.close()

    # --- what DeepSpeed calls ---

    def create(self, info: Any) -> None:
        """A checkpoint begins."""
        self._saved = {}

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        """Take what would be a file of a checkpoint; it is saved by :meth:`commit`. Write any other."""
        if path.endswith(_STATES):
            self._saved[os.path.basename(path)] = state_dict
        else:
            TorchCheckpointEngine().save(clone_tensors_for_torch_save(state_dict), path)

    def commit(self, info: Any) -> bool:
        """Save all of it as one checkpoint (collective); returns when the engine may go on training."""
        saved, self._saved = self._saved, {}
        if not saved:  # on any rank: weights alone were written, by save_16bit_model()
            return True

        def state() -> dict[str, Any]:
            files = {_common(name): _decomposed(states, name) for name, states in saved.items()}
            data = pack({name: position(loader) for name, loader in self._loaders.items()}, "positions in the data")
            return {"files": files, "tag": info.tag, "data": data, "rng": rng_state()}

        self.pending = self._saving.save(state, self._engine.global_steps)
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """What :meth:`resume` has restored of a file; DeepSpeed puts it where it belongs."""
        name = os.path.basename(path)
        file = self._restored.get(_common(name))
        if file is None or file["name"] != name:
            raise CheckpointError(
                "DeepSpeed asks for states that this rank did not restore",
                expected=", ".join(sorted(each["name"] for each in self._restored.values())) or "a call of resume()",
                found=name,
                todo="call resume() of deeppart's CheckpointEngine instead of engine.load_checkpoint(), with as many "
                "ranks as saved it",
            )
        return unpack(file["rest"], name, file["tensors"], _classes())

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Every rank gives the weights: the ranks divide them among themselves."""
        return True

    def preserves_storage_sharing(self) -> bool:
        """False: views are saved as what they show, so DeepSpeed need not copy them before."""
        return False

    def _write_markers(self, folder: Path) -> None:
        """Empty files where DeepSpeed looks whether its own are there: those with the model, of all model ranks."""
        folder.mkdir(parents=True)
        for file in self._restored.values():
            if file["name"].endswith(_MODEL):
                for rank in range(self._engine.mp_world_size):
                    folder.joinpath(re.sub(r"mp_rank_\d+", f"mp_rank_{rank:02d}", file["name"])).touch()


def _common(name: str) -> str:
    """The name of a file without the rank: the same on all of them."""
    return _RANK.sub(r"\g<1>N", name)


def _decomposed(states: dict[str, Any], name: str) -> dict[str, Any]:
    """Tensors of a state dict as a list, and all else as a text: it has other structure on other ranks."""
    tensors: list[torch.Tensor] = []
    rest = pack(states, name, tensors, _classes())
    return {"name": name, "tensors": tensors, "rest": rest}


def _classes() -> dict[str, type]:
    """Classes of DeepSpeed whose objects are in its states, and consist only of their attributes."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return {kind.__name__: kind for kind in (LossScaler, DynamicLossScaler, fragment_address, ZeroStageEnum)}


def _check_loader(name: str, loader: Any) -> None:
    """Refuse a loader that has no position."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        raise ConfigError(
            f"data loader {name!r} has no position to save",
            expected="a loader with state_dict() and load_state_dict()",
            found=type(loader).__qualname__,
            todo="use torchdata.stateful_dataloader.StatefulDataLoader, or leave it out of loaders=",
        )


def _check(engine: Any) -> None:
    """Refuse by name what would be saved wrongly or not at all."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    found = [
        (engine.zero_optimization_stage() not in (1, 2, 3), f"ZeRO stage {engine.zero_optimization_stage()}"),
        (isinstance(engine, PipelineEngine), "pipeline parallelism"),
        (engine.has_moe_layers, "mixture of experts"),
        (engine.zero_nvme_offload_optimizer(), "optimizer states on NVMe"),
        (engine.zero_elastic_checkpoint(), "elastic_checkpoint"),
        (engine.load_universal_checkpoint(), "universal checkpoints"),
    ]
    refuse(
        "this DeepSpeed engine is of a kind that deeppart cannot save",
        found,
        expected="ZeRO 1, 2 or 3, as dense models have it",
        todo="use DeepSpeed's own checkpoint engine",
    )
