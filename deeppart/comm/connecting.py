"""Chooses the communicator: the caller's, or the one that matches the launcher of this process."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from deeppart.comm.channel import Comm
from deeppart.comm.single import SingleComm
from deeppart.config import Launch, launch, meeting_variables, secret_of_ranks
from deeppart.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

    from deeppart.comm.sockets.rendezvous import Rendezvous


def connect(comm: Any, timeout: float) -> Comm:
    """The communicator to use: the caller's, or the one that matches the launcher of this process."""
    if comm is None:
        return _launched(launch(), timeout)
    if hasattr(comm, "receive_into"):
        already: Comm = comm
        return already
    if hasattr(comm, "Get_size"):
        if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
            _check_state(mpi, "this process")
        if not comm or comm.Is_inter():
            raise LaunchError(
                "`comm` does not connect this process with others of one group",
                expected="an intracommunicator that this process is in",
                found="an intercommunicator" if comm else "MPI.COMM_NULL, as Split() returns outside of all groups",
                todo="make the checkpointer only on the ranks of the communicator",
            )
        if comm.Get_size() == 1:
            _check_world()
            return SingleComm()
        return _over_mpi(comm, timeout)
    from deeppart.comm.sockets import stores

    if not stores.is_group(comm):
        raise LaunchError(
            "`comm` is not a communicator",
            expected="an mpi4py communicator, a process group of torch.distributed, or None",
            found=type(comm).__name__,
        )
    return _over_sockets(stores.at_group(comm), timeout)


def _launched(launched: Launch | None, timeout: float) -> Comm:
    """The communicator of the processes that a launcher has started."""
    if launched is not None and launched.size == 1:
        launched = None
    if launched is not None and (world := _world(launched)) is not None:
        return _over_mpi(world, timeout)
    if launched is not None and launched.place is not None:
        from deeppart.comm.sockets.stores import at_environment

        return _over_sockets(at_environment(launched), timeout)
    if "torch.distributed" in sys.modules:
        from deeppart.comm.sockets import stores

        if stores.initialized():
            return _over_sockets(stores.at_group(None), timeout)
    if launched is not None:
        raise _no_way_to_meet(launched)
    return SingleComm()


def _world(launched: Launch) -> MPI.Comm | None:
    """The communicator of all processes, if MPI connects them.

    Not all process managers that srun uses for MPI are known here: without other information, MPI is tried.
    """
    is_tried = launched.launcher == "srun" and launched.place is None
    if not (launched.by_mpi or is_tried) or importlib.util.find_spec("mpi4py") is None:
        return None
    try:
        world: MPI.Comm = _import_mpi(launched).COMM_WORLD
        if world.Get_size() != launched.size:
            raise _mismatch(launched, found=f"an MPI world of {world.Get_size()}")
    except LaunchError:
        if is_tried:
            return None
        raise
    return world


def _check_world() -> None:
    """A single-rank world may be intended, or the result of a launcher that does not match the MPI library."""
    launched = launch()
    if (
        launched is not None
        and launched.size > 1
        and launched.by_mpi
        and _import_mpi(launched).COMM_WORLD.Get_size() == 1
    ):
        raise _mismatch(launched, found="an MPI world of 1")


def _over_mpi(comm: MPI.Comm, timeout: float) -> Comm:
    from deeppart.comm import mpi

    return mpi.connect(comm, timeout)


def _over_sockets(rendezvous: Rendezvous, timeout: float) -> Comm:
    if rendezvous.size == 1:
        return SingleComm()
    from deeppart.comm.sockets.rendezvous import meet

    return meet(rendezvous, timeout, secret_of_ranks())


def _import_mpi(launched: Launch) -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _mismatch(launched, found=f"mpi4py does not load: {error}") from error
    _check_state(MPI, f"rank {launched.rank}")
    return MPI


def _check_state(mpi: Any, where: str) -> None:
    """Check that MPI can be used: most calls before initialization or after finalization end the process."""
    if not mpi.Is_initialized():
        todo = "call MPI.Init_thread() before, or leave mpi4py.rc.initialize as it is: importing MPI does it"
        raise LaunchError("MPI is not initialized in this process", where=where, todo=todo)
    if mpi.Is_finalized():
        todo = "call MPI.Finalize() after all else, or not at all: the process does it when it ends"
        raise LaunchError("MPI is finalized in this process", where=where, todo=todo)


def _mismatch(launched: Launch, found: str) -> LaunchError:
    todo = "use the mpirun of the MPI library that mpi4py loads: python -m mpi4py --mpi-lib-version"
    if launched.launcher == "srun":
        todo = "start with srun --mpi=pmi2 (srun --mpi=list shows what is there), or with mpirun"
    return LaunchError(
        f"{launched.launcher} started {launched.size} processes, but they do not form one MPI job",
        expected=f"an MPI world of {launched.size} ranks",
        found=found,
        where=f"process {launched.rank}",
        todo=todo,
    )


def _no_way_to_meet(launched: Launch) -> LaunchError:
    todo = "set MASTER_ADDR and MASTER_PORT to a host and a free port of rank 0, as for torch.distributed"
    if launched.launcher == "srun":
        todo += (
            ": MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)); "
            "or start with srun --mpi=pmi2"
        )
    if launched.by_mpi:
        todo = f"pip install mpi4py, built for the MPI of this launcher; or {todo}"
    started = f"{launched.launcher} started {launched.size} processes"
    if launched.launcher == "env://":
        started = f"RANK and WORLD_SIZE tell of {launched.size} processes"
    return LaunchError(
        f"{started}, but nothing tells how they reach each other",
        expected="the host and the port of rank 0, or MPI",
        found=meeting_variables(),
        where=f"process {launched.rank}",
        todo=todo,
    )
