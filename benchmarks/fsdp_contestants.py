"""Who takes part in benchmarks/fsdp.py: each saves a sharded state and loads it, on the ranks of a group."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import deeppart
from benchmarks.fsdp_state import Sweep

_TIMEOUT_S = 300.0
_OPTIONS = ("use_pinned_memory", "use_shared_memory", "use_async_staging", "use_non_blocking_copy")


@dataclass(frozen=True)
class Saved:
    """Seconds of one save on this rank, from the call: until it has returned, until the state may change, until the
    files are safe on disk.
    """

    blocked_s: float
    free_s: float
    safe_s: float


class Contestant(Protocol):
    """Saves several times, each time another state; then it is closed."""

    def save(self, tree: dict[str, Any], optimizer: Sweep) -> Saved:
        """Once; what is left to be loaded is the last one."""

    def load(self, tree: dict[str, Any], group: dist.ProcessGroup) -> None:
        """In place, on the ranks of a group; as a job would that has just been started."""

    def close(self) -> int:
        """Give everything back, before the first load; returns bytes of processes other than this one."""


class Deeppart:
    """A persistent directory and no local one; nothing compressed."""

    def __init__(self, path: Path, capture: str) -> None:
        self._path, self._capture, self._step = path, capture, 0
        self._checkpointer = self._open(None)

    def save(self, tree: dict[str, Any], optimizer: Sweep) -> Saved:
        self._step += 1
        began = time.perf_counter()
        pending = self._checkpointer.checkpoint(tree, step=self._step)
        blocked_s = time.perf_counter() - began
        if self._capture == "lazy":
            optimizer.step()  # at once: the worst that can come
        pending.wait("persistent", _TIMEOUT_S)
        return Saved(blocked_s, blocked_s + pending.report.held_s, time.perf_counter() - began)

    def load(self, tree: dict[str, Any], group: dist.ProcessGroup) -> None:
        with self._open(group) as checkpointer:
            if checkpointer.restore(tree) != self._step:
                raise RuntimeError(f"step {self._step} was not restored")

    def close(self) -> int:
        self._checkpointer.close()
        return 0

    def _open(self, group: dist.ProcessGroup | None) -> deeppart.Checkpointer:
        config = deeppart.Config(
            persistent_dir=str(self._path),
            keep={"persistent": 1},
            compression="none",
            capture=self._capture,
            timeout=_TIMEOUT_S,
        )
        return deeppart.Checkpointer(config, comm=group)


class Dcp:
    """``dcp.save`` and ``dcp.load``: every save into a directory of its own, as its documentation has it."""

    def __init__(self, path: Path, *, cached_plans: bool = True) -> None:
        self._path, self._saves, self._cached_plans = path, 0, cached_plans

    def save(self, tree: dict[str, Any], optimizer: Sweep) -> Saved:
        options = self._options()
        began = time.perf_counter()
        dcp.save(tree, **options)
        return Saved(*(time.perf_counter() - began,) * 3)

    def load(self, tree: dict[str, Any], group: dist.ProcessGroup) -> None:
        dcp.load(tree, checkpoint_id=self._path / str(self._saves), process_group=group)

    def close(self) -> int:
        _forget_plans()
        return 0

    def _options(self) -> dict[str, Any]:
        """For the next save: where to, and with its files synced."""
        self._saves += 1
        writer = dcp.FileSystemWriter(self._path / str(self._saves), sync_files=True)
        return {"storage_writer": writer, "planner": dcp.DefaultSavePlanner(enable_plan_caching=self._cached_plans)}


class DcpAsync(Dcp):
    """``dcp.async_save`` with a stager that is kept, and its memory with it.

    Args:
        staging: names of the stager's options that are on; None for the stager that DCP makes for each save.
        in_process: a process of its own writes.
    """

    def __init__(
        self, path: Path, staging: frozenset[str] | None, *, in_process: bool = False, cached_plans: bool = True
    ) -> None:
        super().__init__(path, cached_plans=cached_plans)
        self._more: dict[str, Any] = {}
        self._stager = None
        if staging is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without a GPU, no memory is pinned
                self._stager = DefaultStager(StagingOptions(**{name: name in staging for name in _OPTIONS}))
            self._more["async_stager"] = self._stager
        if in_process:
            self._more["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS

    def save(self, tree: dict[str, Any], optimizer: Sweep) -> Saved:
        options = self._options() | self._more
        began = time.perf_counter()
        saving: Any = dcp.async_save(tree, **options)
        blocked_s = free_s = time.perf_counter() - began
        if hasattr(saving, "staging_completion"):
            saving.staging_completion.result(_TIMEOUT_S)
            free_s = time.perf_counter() - began
            saving = saving.upload_completion
        saving.result(_TIMEOUT_S)
        return Saved(blocked_s, free_s, time.perf_counter() - began)

    def close(self) -> int:
        process = _async_process_executor._CHECKPOINT_PROCESS
        nbytes = 0 if process is None else _own_peak_bytes(process._save_process.pid)
        vars(_async_process_executor)["_CHECKPOINT_PROCESS"] = None  # which ends it
        del process
        if self._stager is not None:
            self._stager.close()
        self._more.clear()
        self._stager = None
        gc.collect()  # what was staged is in cycles, and would be there twice
        return super().close() + nbytes


def _own_peak_bytes(pid: int | None) -> int:
    """Most memory that a process has had, without what it shares with this one."""
    found = {"VmHWM": 0, "RssShmem": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = 1024 * int(value.split()[0])
    return max(0, found["VmHWM"] - found["RssShmem"])


def _forget_plans() -> None:
    """DCP keeps plans for the whole process; those of another contestant are none of ours."""
    for name, kept in vars(dcp.SavePlanner).items():
        if name.startswith("_cached_") and isinstance(kept, dict):
            kept.clear()


_STAGERS: dict[str, frozenset[str] | None] = {
    "fresh": None,
    "kept": frozenset(),
    "shared": frozenset({"use_shared_memory"}),
    "pinned": frozenset({"use_pinned_memory"}),
    "staging": frozenset({"use_async_staging"}),
}

#: Name -> what makes one, with its files below a directory.
CONTESTANTS: dict[str, Callable[[Path], Contestant]] = {
    "deeppart": partial(Deeppart, capture="eager"),
    "deeppart lazy": partial(Deeppart, capture="lazy"),
    "dcp.save": Dcp,
    "dcp.save plans": partial(Dcp, cached_plans=False),
    **{f"dcp.async_save {name}": partial(DcpAsync, staging=staging) for name, staging in _STAGERS.items()},
    "dcp.async_save plans": partial(DcpAsync, staging=frozenset(), cached_plans=False),
    "dcp.async_save process": partial(DcpAsync, staging=frozenset({"use_shared_memory"}), in_process=True),
    "dcp.async_save process staging": partial(
        DcpAsync, staging=frozenset({"use_shared_memory", "use_async_staging"}), in_process=True
    ),
}
