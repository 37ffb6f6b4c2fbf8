"""The only package that imports mpi4py: how ranks find each other, and how they talk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from deeppart.comm.base import Comm, Operation, rank_names
from deeppart.comm.single import SingleComm
from deeppart.comm.waiting import finish
from deeppart.config.job import launcher_world
from deeppart.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Comm", "Operation", "SingleComm", "connect", "finish", "rank_names"]


def connect(comm: Any, timeout: float) -> Comm:
    """The communicator to use: the caller's (mpi4py), or COMM_WORLD when launched under MPI, or one process.

    Args:
        comm: an ``mpi4py.MPI.Comm``, an object that already is a :class:`deeppart.comm.base.Comm`, or None.
        timeout: seconds to wait for the other ranks to connect.

    Raises:
        LaunchError: a launcher started several processes, but MPI connects fewer: each would train
            and save for itself.
        PeerTimeoutError: other ranks did not connect in time.
    """
    if comm is None:
        launched = launcher_world()
        if launched is None or launched[2] == 1:
            return SingleComm()
        launcher, rank, size = launched
        world = _import_mpi(launcher, rank, size).COMM_WORLD
        if world.Get_size() != size:
            raise _mismatch(launcher, rank, size, found=f"an MPI world of {world.Get_size()}")
        comm = world
    elif hasattr(comm, "receive_into"):
        already: Comm = comm
        return already
    elif (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        _check_state(mpi, "this process")
    if comm.Get_size() == 1:
        _check_world()
        return SingleComm()
    return _over_mpi(comm, timeout)


def _check_world() -> None:
    """A communicator of one rank may be a choice, or all that a mismatched launcher has left of the job's."""
    launched = launcher_world()
    if launched is not None and launched[2] > 1 and launched[0] != "torchrun":
        launcher, rank, size = launched
        world = _import_mpi(launcher, rank, size).COMM_WORLD
        if world.Get_size() == 1:
            raise _mismatch(launcher, rank, size, found="an MPI world of 1")


def _over_mpi(comm: MPI.Comm, timeout: float) -> Comm:
    from deeppart.comm.mpi import connected

    # The wait needs a channel to speak of, and there is none yet: a stand-in that knows rank and size serves.
    waiting = SingleComm()
    waiting.rank, waiting.size = comm.Get_rank(), comm.Get_size()
    return finish(waiting, connected(comm), "connecting the ranks", timeout)


def _import_mpi(launcher: str, rank: int, size: int) -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _mismatch(launcher, rank, size, found=f"mpi4py does not load: {error}") from error
    _check_state(MPI, f"rank {rank}")
    return MPI


def _check_state(mpi: Any, where: str) -> None:
    """MPI must be in use: nearly every call ends the process before it is initialized and after it is finalized."""
    if not mpi.Is_initialized():
        todo = "call MPI.Init_thread() before, or leave mpi4py.rc.initialize as it is: importing MPI does it"
        raise LaunchError("MPI is not initialized in this process", where=where, todo=todo)
    if mpi.Is_finalized():
        todo = "call MPI.Finalize() after all else, or not at all: the process does it when it ends"
        raise LaunchError("MPI is finalized in this process", where=where, todo=todo)


def _mismatch(launcher: str, rank: int, size: int, found: str) -> LaunchError:
    todo = "use the mpirun of the MPI library that mpi4py loads: python -m mpi4py --mpi-lib-version"
    if launcher == "torchrun":
        todo = "start with mpirun or srun --mpi=pmi2, or pass comm= an mpi4py communicator"
    elif launcher == "srun":
        todo = "start with srun --mpi=pmi2 (srun --mpi=list shows what is there), or with mpirun"
    return LaunchError(
        f"{launcher} started {size} processes, but they do not form one MPI job",
        expected=f"an MPI world of {size} ranks",
        found=found,
        where=f"process {rank}",
        todo=todo,
    )
