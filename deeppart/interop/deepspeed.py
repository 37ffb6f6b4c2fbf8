"""Checkpoints for DeepSpeed, ZeRO 1 to 3: a checkpoint engine that replaces DeepSpeed's own.

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
from deeppart.interop.training_state import own_generator, pack, position, rng_state, seek, set_rng_state, unpack
from deeppart.types import PerRank

require("deepspeed", "0.18", "deeppart.interop.deepspeed")

from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine as BaseCheckpointEngine

#: The rank in the name of a file.
_RANK = re.compile(r"(zero_pp_rank_|mp_rank_)\d+")
_MODEL = "model_states.pt"
#: Suffix of the files of a checkpoint. Others, such as those of save_16bit_model(), are for other programs.
_STATES = "_states.pt"


class CheckpointEngine(BaseCheckpointEngine):
    """Saves and resumes a DeepSpeed engine: ZeRO 1 to 3, on the same world size.

    It replaces ``engine.checkpoint_engine``. The files that DeepSpeed would write on each rank become one checkpoint,
    made in the background: replicated weights are saved once and divided among the ranks, ZeRO partitions, random
    generators and data loader positions per rank. The folder of ``save_checkpoint`` gets DeepSpeed's ``latest`` file,
    but no states.

    DeepSpeed's partitions are flat and opaque, so they can only be restored on the same world size.

    Args:
        engine: an engine from ``deepspeed.initialize``.
        checkpointer: an open :class:`deeppart.Checkpointer`, which stays open; or a :class:`deeppart.Config`, or None
            for the settings of the environment and ``deeppart.toml``: :meth:`close` closes it then.
        loaders: name -> stateful data loader, such as torchdata's StatefulDataLoader, whose position to save.

    Attributes:
        pending: the last checkpoint, or None.

    Raises:
        ConfigError: a feature of the engine is not supported.
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
            if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
                raise ConfigError(
                    f"data loader {name!r} has no position to save",
                    expected="a loader with state_dict() and load_state_dict()",
                    found=type(loader).__qualname__,
                    todo="use torchdata.stateful_dataloader.StatefulDataLoader, or leave it out of loaders=",
                )
            own_generator(loader)
        self._saving = Saving(checkpointer)
        self.pending: Pending | None = None
        self._saved: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}
        engine.checkpoint_engine = self
        engine.save_non_zero_checkpoint = True  # every rank passes the weights

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer in use; opened at the first access (collective)."""
        return self._saving.checkpointer

    def resume(self, step: int | None = None, per_rank: PerRank | None = None, **options: Any) -> dict[str, Any] | None:
        """Restore a checkpoint into the engine, the loaders and the random generators (collective).

        Args:
            step: the step; None for the newest recoverable one.
            per_rank: as for :meth:`deeppart.Checkpointer.restore`; not applied to DeepSpeed's own states.
            options: passed to ``engine.load_checkpoint``.

        Returns:
            The saved ``client_state``; None if there is no checkpoint.

        Raises:
            PerRankError: the checkpoint was saved on another world size.
            DeeppartError: as for :meth:`deeppart.Checkpointer.restore`; the engine is unchanged.
        """
        state: dict[str, Any] = {"files": {}, "tag": "", "data": "", "rng": {}}
        files, rng = {"files/*": "strict"}, {"rng/*": "drop"}
        try:
            if self._saving.restore(state, step, per_rank, overrides=files, defaults=rng) is None:
                return None
        except PerRankError as error:
            error.todo = "restart on the number of ranks that saved it: DeepSpeed's partitions are flat and opaque"
            raise
        self._restored = state["files"]
        try:
            with tempfile.TemporaryDirectory(prefix="deeppart-deepspeed-") as folder:
                self._write_markers(Path(folder, state["tag"]))
                _, client_state = self._engine.load_checkpoint(folder, state["tag"], **options)
        finally:
            self._restored = {}
        positions = unpack(state["data"], "positions in the data")
        for name, saved in positions.items():
            if name in self._loaders:
                seek(self._loaders[name], saved)
        if missing := sorted(self._loaders.keys() - positions.keys()):
            warnings.warn(
                f"data loaders restart, because the checkpoint has no position for them: {', '.join(missing)} "
                f"(it has: {', '.join(sorted(positions)) or 'none'})",
                DeeppartWarning,
                stacklevel=2,
            )
        set_rng_state(state["rng"])
        found: dict[str, Any] = client_state
        return found

    def close(self) -> None:
        """Finish background work, if this object opened the Checkpointer (collective)."""
        self._saving.close()

    # --- called by DeepSpeed ---

    def create(self, info: Any) -> None:
        """Begin a checkpoint."""
        self._saved = {}

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        """Keep a file of the checkpoint for :meth:`commit`; write any other file."""
        if path.endswith(_STATES):
            self._saved[os.path.basename(path)] = state_dict
        else:
            TorchCheckpointEngine().save(clone_tensors_for_torch_save(state_dict), path)

    def commit(self, info: Any) -> bool:
        """Save the collected files as one checkpoint (collective); returns once training may continue."""
        saved, self._saved = self._saved, {}
        if not saved:  # on every rank: save_16bit_model() wrote the weights alone
            return True

        def state() -> dict[str, Any]:
            files = {}
            for name, states in saved.items():
                tensors = list[torch.Tensor]()  # the rest is one string: its structure may differ between ranks
                rest = pack(states, name, tensors, _classes())
                files[_common(name)] = {"name": name, "tensors": tensors, "rest": rest}
            data = pack({name: position(loader) for name, loader in self._loaders.items()}, "positions in the data")
            return {"files": files, "tag": info.tag, "data": data, "rng": rng_state()}

        self.pending = self._saving.save(state, self._engine.global_steps)
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """The restored content of a file."""
        name = os.path.basename(path)
        file = self._restored.get(_common(name))
        if file is None or file["name"] != name:
            raise CheckpointError(
                "DeepSpeed requested states that this rank did not restore",
                expected=", ".join(sorted(each["name"] for each in self._restored.values())) or "a call of resume()",
                found=name,
                todo="call resume() of deeppart's CheckpointEngine instead of engine.load_checkpoint(), on the world "
                "size that saved it",
            )
        return unpack(file["rest"], name, file["tensors"], _classes())

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """True: every rank passes the weights, which are then divided among the ranks."""
        return True

    def preserves_storage_sharing(self) -> bool:
        """False: views are saved without their base, so DeepSpeed need not copy them."""
        return False

    def _write_markers(self, folder: Path) -> None:
        """Create empty model files, whose existence DeepSpeed checks, for all model-parallel ranks."""
        folder.mkdir(parents=True)
        for file in self._restored.values():
            if file["name"].endswith(_MODEL):
                for rank in range(self._engine.mp_world_size):
                    folder.joinpath(re.sub(r"mp_rank_\d+", f"mp_rank_{rank:02d}", file["name"])).touch()


def _common(name: str) -> str:
    """The name of a file without its rank."""
    return _RANK.sub(r"\g<1>N", name)


def _classes() -> dict[str, type]:
    """DeepSpeed's classes that occur in its states; their objects consist only of attributes."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return {kind.__name__: kind for kind in (LossScaler, DynamicLossScaler, fragment_address, ZeroStageEnum)}


def _check(engine: Any) -> None:
    """Reject unsupported features."""
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
        "deeppart does not support features of this DeepSpeed engine",
        found,
        expected="ZeRO 1, 2 or 3, with a dense model",
        todo="use DeepSpeed's own checkpoint engine",
    )
