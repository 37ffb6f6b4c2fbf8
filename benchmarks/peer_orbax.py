"""Orbax, the checkpoint library of JAX, with the state's tensors as numpy arrays and as JAX arrays, without a copy.

What it can do with a state of torch's on several ranks: with ``jax.distributed`` among them, all take part in a save.
Of numpy leaves process 0 writes everything, as the others expect the same on it. JAX arrays that are replicated over
the processes are written by all of them, a share each. ``AsyncCheckpointer`` copies numpy leaves before it returns.
JAX arrays never change, so it does not copy those, and they cannot be used for tensors that training changes in place.
So: ``save`` with numpy and with replicated JAX arrays, async with numpy. Uncompressed, as all others here.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.memory import MemoryWatch, available_bytes
from benchmarks.peers import free_port, saved_and_restored
from benchmarks.rig import Rig, Turn

_JOINED = False
#: Leaves by number, as JAX and numpy see the memory of the live tensors.
_Leaves = dict[str, Any]


class Orbax:
    """``Checkpointer`` and ``AsyncCheckpointer`` with ``PyTreeCheckpointHandler``, kept from one save to the next."""

    name = "Orbax"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        if not _has_room(rig):
            return {}
        _join(rig)
        import orbax.checkpoint as ocp

        path = rig.disk / "orbax"
        leaves: _Leaves = {f"{number:06d}": leaf.numpy() for number, leaf in enumerate(rig.workload.leaves)}
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in leaves}

        def load() -> None:
            handler = ocp.PyTreeCheckpointHandler(use_compression=False, restore_concurrent_gb=1)
            with ocp.Checkpointer(handler) as checkpointer:
                found = checkpointer.restore(path, args=ocp.args.PyTreeRestore(leaves, restore_args=as_numpy))
            _copy_into(rig, found)

        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
            measured = saved_and_restored(
                rig, path, lambda: checkpointer.save(path, args=ocp.args.PyTreeSave(leaves)), load, "Orbax"
            )
            if rig.size > 1:
                everywhere = _replicated(rig)
                rig.step()
                replicated_s, _ = rig.timed(lambda: checkpointer.save(path, args=ocp.args.PyTreeSave(everywhere)))
                rig.restored("Orbax, replicated JAX arrays", load)
                rig.wipe(path)
                measured["replicated_save_s"] = replicated_s
        with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as background:
            self._save_behind(rig, background, path, leaves, spoil=True)  # does not count: it touches its memory
            rig.restored("Orbax async, state overwritten meanwhile", load)
            rig.wipe(path)
            with MemoryWatch() as memory:
                measured |= self._save_behind(rig, background, path, leaves, spoil=False)
            measured["async_memory_bytes"] = rig.slowest(memory.growth_bytes)
            rig.restored("Orbax async", load)
        rig.wipe(path)
        return measured

    def _save_behind(self, rig: Rig, checkpointer: Any, path: Path, leaves: _Leaves, spoil: bool) -> Turn:
        """Save in the background; with ``spoil``, the state changes at once, as it may."""
        import orbax.checkpoint as ocp

        rig.step()
        began = time.perf_counter()
        checkpointer.save(path, args=ocp.args.PyTreeSave(leaves))
        blocked_s = time.perf_counter() - began
        if spoil:
            rig.workload.spoil()
        checkpointer.wait_until_finished()
        done_s = time.perf_counter() - began
        return {"async_blocked_s": rig.slowest(blocked_s), "async_done_s": rig.slowest(done_s)}


def orbax_missing() -> str | None:
    """Why it cannot take part, or None."""
    if importlib.util.find_spec("orbax") is None or importlib.util.find_spec("jax") is None:
        return "orbax-checkpoint is not installed (pip install 'deeppart[orbax]')"
    return None


def _has_room(rig: Rig) -> bool:
    """On all ranks alike: each has the state once more, while it is saved and while it is restored."""
    enough = available_bytes() > rig.size * (rig.workload.nbytes + (2 << 30))
    if not enough:
        rig.say("too little memory for Orbax: left out")
    return bool(rig.comm.bcast(enough))


def _join(rig: Rig) -> None:
    """Make JAX's processes out of the MPI ranks, once, on this host."""
    global _JOINED
    if _JOINED:
        return
    import jax
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    jax.config.update("jax_platforms", "cpu")
    if rig.size > 1:
        jax.distributed.initialize(f"127.0.0.1:{free_port(rig)}", rig.size, rig.rank)
    _JOINED = True


def _replicated(rig: Rig) -> _Leaves:
    """JAX arrays that every process has a whole copy of: the live tensors' own memory, where JAX accepts its place."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec())
    return {
        f"{number:06d}": jax.make_array_from_single_device_arrays(
            leaf.shape, sharding, [jax.dlpack.from_dlpack(leaf.detach())]
        )
        for number, leaf in enumerate(rig.workload.leaves)
    }


def _copy_into(rig: Rig, found: dict[str, npt.NDArray[Any]]) -> None:
    with torch.no_grad():
        for number, leaf in enumerate(rig.workload.leaves):
            np.copyto(leaf.numpy(), found[f"{number:06d}"])
