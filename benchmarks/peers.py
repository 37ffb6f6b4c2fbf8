"""The peers, used the way their documentation shows: torch.save, torch.distributed.checkpoint and torchsnapshot."""

from __future__ import annotations

import gc
import importlib.util
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from benchmarks.memory import MemoryWatch, available_bytes
from benchmarks.rig import Rig, Turn

_TIMEOUT = timedelta(seconds=300)


class TorchSave:
    """``torch.save`` on rank 0 while the others wait; ``torch.load`` and a copy into the live tensors on every rank."""

    name = "torch.save"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        path = rig.disk / "torch-save.pt"

        def save() -> None:
            if rig.rank == 0:
                with path.open("wb") as file:
                    torch.save(rig.workload.tree, file)
                _sync(path)
            rig.comm.Barrier()

        load_s = 0.0

        def load() -> None:
            nonlocal load_s
            began = time.perf_counter()
            values = torch.load(path, map_location="cpu", weights_only=True)
            load_s = time.perf_counter() - began
            rig.workload.take(values)

        measured = saved_and_restored(rig, path, save, load, "torch.load")
        return measured | {"load_s": rig.slowest(load_s)}


class Safetensors:
    """``save_file`` on rank 0 while the others wait; ``load_file`` and a copy into the live tensors on every rank."""

    name = "safetensors"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        from safetensors.torch import load_file, save_file

        path = rig.disk / "state.safetensors"
        leaves = {f"{number:06d}": leaf for number, leaf in enumerate(rig.workload.leaves)}

        def save() -> None:
            if rig.rank == 0:
                save_file(leaves, path)
                _sync(path)
            rig.comm.Barrier()

        def load() -> None:
            for name, value in load_file(path).items():
                leaves[name].copy_(value)

        return saved_and_restored(rig, path, save, load, self.name)


class Zipnn:
    """ZipNN on rank 0, tensor by tensor, into one file while the others wait; every rank reads and decompresses it."""

    name = "ZipNN"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        from zipnn import ZipNN

        path = rig.disk / "zipnn"

        def save() -> None:
            if rig.rank == 0:
                codec = ZipNN(bytearray_dtype="float32", threads=1)
                with path.open("wb") as file:
                    for leaf in rig.workload.leaves:
                        data = codec.compress(bytearray(leaf.reshape(-1).view(torch.uint8).numpy()))
                        file.write(len(data).to_bytes(8, "little"))
                        file.write(data)
                _sync(path)
            rig.comm.Barrier()

        def load() -> None:
            codec = ZipNN(bytearray_dtype="float32", threads=1)
            with path.open("rb") as file:
                for leaf in rig.workload.leaves:
                    data = codec.decompress(file.read(int.from_bytes(file.read(8), "little")))
                    leaf.reshape(-1).copy_(torch.frombuffer(bytearray(data), dtype=leaf.dtype))

        return saved_and_restored(rig, path, save, load, self.name)


class Dcp:
    """``dcp.save`` and ``dcp.load``."""

    name = "dcp"

    def _save(self, rig: Rig, path: Path) -> None:
        dcp.save(rig.workload.tree, checkpoint_id=path)

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        path = rig.disk / "dcp"

        def load() -> None:
            dcp.load(rig.workload.tree, checkpoint_id=path)

        return saved_and_restored(rig, path, lambda: self._save(rig, path), load, "dcp.load")


class DcpZstd(Dcp):
    """The same through DCP's own ZStandard extension."""

    name = "dcp zstd"

    def _save(self, rig: Rig, path: Path) -> None:
        from torch.distributed.checkpoint._extension import ZStandard

        writer = dcp.FileSystemWriter(path, _extensions=[ZStandard()])
        dcp.save(rig.workload.tree, storage_writer=writer)


#: What ``dcp.async_save`` may be told, by the prefix of its figures: its staging options by name, and whether a process
#: of its own writes. Memory of a stager that is kept is there before the clock runs.
_STAGERS: dict[str, tuple[frozenset[str], bool]] = {
    "kept_": (frozenset(), False),
    "staging_": (frozenset({"use_async_staging"}), False),
    "process_": (frozenset({"use_shared_memory"}), True),
}


class DcpAsync:
    """``dcp.async_save`` as it comes, and in the ways that its documentation offers a CPU: :data:`_STAGERS`."""

    name = "dcp.async_save"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        with MemoryWatch() as memory:
            measured = self._save(rig, "", {})
        measured["memory_bytes"] = rig.slowest(memory.growth_bytes)
        path = rig.disk / "dcp-async"
        rig.restored("dcp.load after dcp.async_save", lambda: dcp.load(rig.workload.tree, checkpoint_id=path))
        rig.wipe(path)
        for prefix, (wanted, in_process) in _STAGERS.items():
            stager = _kept_stager(wanted)
            if stager is None or (in_process and not _has_room_for_process(rig)):
                continue
            options: dict[str, Any] = {"async_stager": stager}
            if in_process:
                from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

                options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
            self._save(rig, prefix, options)  # does not count: memory is touched, the process starts
            rig.wipe(path)
            measured |= self._save(rig, prefix, options)
            rig.restored(f"dcp.load, {prefix}", lambda: dcp.load(rig.workload.tree, checkpoint_id=path))
            stager.close()
            _end_process()
            del stager, options
            gc.collect()  # what was staged is in cycles, and would be there twice
            rig.wipe(path)
        return measured

    def _save(self, rig: Rig, prefix: str, options: dict[str, Any]) -> Turn:
        path = rig.disk / "dcp-async"
        rig.step()
        began = time.perf_counter()
        saving: Any = dcp.async_save(rig.workload.tree, checkpoint_id=path, **options)
        measured = {"blocked_s": time.perf_counter() - began}
        if hasattr(saving, "staging_completion"):
            saving.staging_completion.result()  # until then, training must not change the state
            measured["staged_s"] = time.perf_counter() - began
            saving = saving.upload_completion
        saving.result()
        measured["done_s"] = time.perf_counter() - began
        return {f"{prefix}{name}": rig.slowest(seconds) for name, seconds in measured.items()}


def _has_room_for_process(rig: Rig) -> bool:
    """On all ranks alike: the staged state is there once more while the process takes it over."""
    enough = available_bytes() > 3 * rig.size * rig.workload.nbytes
    if not enough:
        rig.say("too little memory for DCP's process with shared memory: left out")
    return bool(rig.comm.bcast(enough))


def _kept_stager(wanted: frozenset[str]) -> Any:
    """A stager that reuses its memory, with some of its options on; None where this torch has none."""
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:
        return None
    options = ("use_pinned_memory", "use_shared_memory", "use_async_staging", "use_non_blocking_copy")
    return DefaultStager(StagingOptions(**{name: name in wanted for name in options}))


def _end_process() -> None:
    """DCP keeps its process, and what was staged for it, until the end of this one."""
    from torch.distributed.checkpoint import _async_process_executor

    vars(_async_process_executor)["_CHECKPOINT_PROCESS"] = None


class TorchSnapshot:
    """``Snapshot.take``, ``async_take`` and ``restore``. It never syncs its files; that is done for it, timed."""

    name = "torchsnapshot"

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        from torchsnapshot import Snapshot, StateDict

        path = rig.disk / "torchsnapshot"
        app_state = {"state": StateDict(**rig.workload.tree)}

        def durable(take: Callable[[], object]) -> None:
            take()
            rig.comm.Barrier()
            for file in _files(path)[rig.rank :: rig.size]:
                _sync(file)

        measured = saved_and_restored(
            rig,
            path,
            lambda: durable(lambda: Snapshot.take(str(path), app_state, replicated=["**"])),
            lambda: Snapshot(str(path)).restore(app_state),
            "torchsnapshot.restore",
        )
        rig.step()
        began = time.perf_counter()
        pending = Snapshot.async_take(str(path), app_state, replicated=["**"])
        blocked_s = time.perf_counter() - began
        durable(pending.wait)
        done_s = time.perf_counter() - began
        rig.wipe(path)
        return measured | {"async_blocked_s": rig.slowest(blocked_s), "async_done_s": rig.slowest(done_s)}


def missing(name: str) -> str | None:
    """Why a contestant cannot take part, or None."""
    checks: dict[str, Callable[[], str | None]] = {
        Safetensors.name: partial(_not_installed, "safetensors"),
        Zipnn.name: partial(_not_installed, "zipnn"),
        DcpZstd.name: _dcp_zstd_missing,
        TorchSnapshot.name: _torchsnapshot_missing,
    }
    return checks[name]() if name in checks else None


def _not_installed(package: str) -> str | None:
    installed = importlib.util.find_spec(package) is not None
    return None if installed else f"{package} is not installed (pip install 'deeppart[bench]')"


def _dcp_zstd_missing() -> str | None:
    try:
        from torch.distributed.checkpoint._extension import ZStandard

        return None if ZStandard.is_available() else "torch finds no zstandard"
    except Exception as error:
        return f"this torch has no such extension: {type(error).__name__}: {error}"


def _torchsnapshot_missing() -> str | None:
    """Why torchsnapshot cannot take part, or None."""
    if importlib.util.find_spec("torchsnapshot") is None:
        return "torchsnapshot is not installed (pip install torchsnapshot aiofiles nest_asyncio 'importlib_metadata<8')"
    try:
        import torchsnapshot  # noqa: F401
    except Exception as error:
        return f"torchsnapshot does not load with this torch: {type(error).__name__}: {error}"
    return None


def free_port(rig: Rig) -> int:
    """A port of this host that nobody has now; the same on every rank."""
    port = 0
    if rig.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    return int(rig.comm.bcast(port))


def join_process_group(rig: Rig) -> None:
    """Make torch.distributed's gloo group out of the MPI ranks, on this host."""
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port = free_port(rig)
    store = dist.TCPStore("127.0.0.1", port, rig.size, is_master=rig.rank == 0, timeout=_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rig.rank, world_size=rig.size, timeout=_TIMEOUT)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _files(path: Path) -> list[Path]:
    """A file, or all that are in a directory."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def saved_and_restored(rig: Rig, path: Path, save: Callable[[], object], load: Callable[[], object], what: str) -> Turn:
    """Seconds, bytes and memory of one save to ``path`` and one restore from it, in the page cache; then wipe it."""
    rig.step()
    with MemoryWatch() as saving:
        save_s, _ = rig.timed(save)
    nbytes = float(sum(file.stat().st_size for file in _files(path)))
    rig.warm_cache(path)
    with MemoryWatch() as loading:
        restore_s = rig.restored(what, load)
    rig.wipe(path)
    return {
        "save_s": save_s,
        "bytes": nbytes,
        "memory_bytes": rig.slowest(saving.growth_bytes),
        "restore_s": restore_s,
        "restore_memory_bytes": rig.slowest(loading.growth_bytes),
    }
